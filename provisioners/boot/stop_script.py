"""Shell script that systemd runs if the bootstrap has ended unexpectedly.

It needs neither Python nor other files, which may be missing or broken.

Azure bills a stopped machine, and Compute Engine bills its disk. The script therefore asks the cloud to deallocate or
delete the machine, which is idempotent. EC2 needs no such script: its machines terminate when they power off, which
systemd does (FailureAction in service.py). Standard output goes to the machine's console.

    sh stop.sh API [CLIENT ID OF THE MANAGED IDENTITY]
"""

from __future__ import annotations

from ..target import SelfDelete

NAME = "stop.sh"

# $EXIT_CODE, $EXIT_STATUS: systemd.exec(5), "Environment Variables Set or Propagated by the Service Manager". They are
# empty if no main process was started. After exit code 0 the bootstrap has ended the machine.
# A rebooting machine continues with its node and must not be deleted. bootstrap.py creates the file `rebooting` if the
# cloud will restart the machine.
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


def stop_script(stop: SelfDelete) -> bytes:
    """Return the script for machines that end themselves by this API request."""
    return (_HEAD + stop.end + _TAIL).encode()


def stop_command(home: str, stop: SelfDelete | None, api_endpoint: str | None, identity: str | None) -> str:
    """Return the command line for the systemd unit; "": the machines need no stop script."""
    if stop is None:
        return ""
    api = (api_endpoint or stop.api).rstrip("/")
    return " ".join(filter(None, ("/bin/sh", f"{home}/{NAME}", api, identity)))
