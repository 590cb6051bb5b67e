"""The shell script that systemd runs when the bootstrap has not ended as it should.

It needs neither Python nor any other of the machine's files, which may be what is missing or broken.

Azure bills a machine that is only off, and Compute Engine the disk of one: so it asks the cloud to deallocate, or to
delete, the machine, which may be asked twice. EC2 needs no such script: powering off is what terminates its machines,
and systemd does that (FailureAction in service.py). Standard output goes to the machine's console.

    sh stop.sh API [CLIENT ID OF THE MANAGED IDENTITY]
"""

from __future__ import annotations

from ..target import Stop

NAME = "stop.sh"

# $EXIT_CODE, $EXIT_STATUS: systemd.exec(5), "Environment Variables Set or Propagated by the Service Manager". They are
# empty where no main process was ever started. After exit code 0 the bootstrap has ended the machine.
# A machine that is rebooted goes on with its node. The file `rebooting` is bootstrap.py's: the cloud starts it again.
_HEAD = """\
#!/bin/sh
[ "$EXIT_CODE/$EXIT_STATUS" != exited/0 ] || exit 0
jobs=$(systemctl list-jobs --no-legend)
case $jobs in
*reboot.target*start* | *kexec.target*start*) exit 0 ;;
*poweroff.target*start* | *halt.target*start*) [ ! -e "${0%/*}/rebooting" ] || exit 0 ;;
esac
echo "cloudgpu: the service has ended unexpectedly ($EXIT_CODE $EXIT_STATUS): this machine is given up"
get() { curl -sSf --noproxy '*' -m 5 -H "$header" "$base/$1"; }
ask() {
    token=$(get "$1" | sed -n 's/.*"access_token" *: *"\\([^"]*\\)".*/\\1/p')
    printf 'Authorization: Bearer %s' "$token" |
        curl -sS --noproxy '*' -m 10 -X "$2" -H @- -H 'Content-Length: 0' -o /dev/null -w '%{http_code}' "$3"
}
"""
_TAIL = """\
for pause in 1 2 4 8 16; do
    status=$(end "$@")
    case $status in 2?? | 404) exit 0 ;; esac
    echo "cloudgpu: this machine cannot end itself: HTTP $status"
    sleep $pause
done
exit 1
"""


def stop_script(stop: Stop) -> bytes:
    """Return the script for machines that end so."""
    return (_HEAD + stop.end + _TAIL).encode()


def stop_command(home: str, stop: Stop | None, api_endpoint: str | None, identity: str | None) -> str:
    """Return the command line for the unit; "" for machines that need none."""
    if stop is None:
        return ""
    api = (api_endpoint or stop.api).rstrip("/")
    return " ".join(filter(None, ("/bin/sh", f"{home}/{NAME}", api, identity)))
