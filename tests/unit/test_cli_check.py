"""The command `cloudgpu check`: arguments, exit codes, text and JSON. Each cloud has its own tests over the wire."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.cli import main
from cloudgpu.control import check
from cloudgpu.provisioners.checks.results import CheckRequest, Step

OUTSIDE = Path(__file__).parents[1] / "contract" / "outside"


@pytest.fixture(autouse=True)
def nothing_is_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "CLOUDGPU_"))
    ]:
        monkeypatch.delenv(name)
    home = str(tmp_path / "home")
    settings = {"HOME": home, "CLOUDGPU_HOME": home, "AWS_EC2_METADATA_DISABLED": "true", "CLOUDSDK_CONFIG": home}
    files = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AZURE_CONFIG_DIR": home}
    for name, value in (settings | files).items():
        monkeypatch.setenv(name, value)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["check", "--timeout", "3m", *arguments])
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return code, output.out, output.err


def test_a_new_user_sees_what_works_and_how_to_set_up_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert code == 0 and "usable from here: local" in err
    for target in ("aws", "gcp", "vertex", "azure", "cluster"):
        assert f"{target} is not set up" in out
    for fix in ("aws sso login", "gcloud auth application-default login", "az login", "cloudgpu cluster up"):
        assert fix in out
    assert "skipped" not in out, "one line for each target that was not asked for"
    assert all(len(line) <= 100 for line in out.splitlines())


def test_a_target_that_is_named_must_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "local")[0] == 0
    assert run(capsys, "azure", "local")[0] == 6
    code, out, err = run(capsys, "aws")
    assert code == 6 and "skipped" in out and "usable from here: nothing" in err


def test_json_has_every_target_and_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json")
    reports = json.loads(out)["targets"]
    assert code == 0 and [one["target"] for one in reports] == ["local", "aws", "gcp", "vertex", "azure", "cluster"]
    for report in reports:
        assert list(report) == ["target", "state", "works", "seconds", "checks"]
        assert report["works"] is (report["target"] == "local")
        for one in report["checks"]:
            assert list(one) == ["subject", "status", "message", "fix", "values"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["asw"], "did you mean aws"),
        (["\x1b[31m"], "known: local, aws"),
        (["aws", "gcp", "--region", "us-eest-1"], "did you mean us-east-1"),
        (["local", "--region", "us-east-1"], "no target has it"),
        (["aws", "--job-dir", "gs://bucket/jobs"], "write s3://BUCKET/FOLDER"),
        (["aws", "--job-dir", "bucket"], "no target can use it"),
        (["gcp", "--job-dir", "gs:///folder"], "write gs://BUCKET/FOLDER"),
        (["local", "--job-dir", "file://folder"], "file:///FOLDER"),
        (["aws", "--timeout", "soon"], "soon"),
    ],
)
def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2 and says in err and not out and "\x1b" not in err


def test_a_stack_s_record_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(os.environ["CLOUDGPU_HOME"]) / "infra"
    folder.mkdir(parents=True)
    (folder / "aws-us-east-1.json").write_text("{")
    code, out, _ = run(capsys, "aws")
    assert code == 6 and "cloudgpu infra status --cloud aws --region us-east-1" in " ".join(out.split())


def test_this_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, out, _ = run(capsys, "local", "--json")
    checks = json.loads(out)["targets"][0]["checks"]
    gpus, python, folder = (one["values"] for one in checks)
    assert gpus["cores"] >= 1 and python["python"] and folder["free_gb"] > 0
    assert not Path(os.environ["CLOUDGPU_HOME"]).exists(), "it only reads"
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("CLOUDGPU_HOME", str(blocked / "home"))
    code, out, _ = run(capsys, "local")
    assert code == 6 and "cannot be written" in " ".join(out.split())


def test_a_local_job_dir(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "local", "--job-dir", (tmp_path / "a" / "b").as_uri())
    assert code == 0 and "can be written" in " ".join(out.split()) and not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    code, out, _ = run(capsys, "local", "--job-dir", (tmp_path / "file" / "b").as_uri())
    assert code == 6 and "cannot be written" in " ".join(out.split())


def test_a_target_of_another_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def check_with(key: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHONPATH": str(OUTSIDE), "SHED_KEY": key}
        command = [sys.executable, "-m", "cloudgpu", "check", "shed"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)

    done = check_with("under the mat")
    assert done.returncode == 0 and "4 benches" in done.stdout
    done = check_with("")
    assert done.returncode == 6 and "write the key's name into SHED_KEY" in done.stdout


def test_a_target_without_checks_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its function `set_up` is asked; this one's package is on the path as if it were installed."""
    (tmp_path / "bare.py").write_text(
        "import os\n"
        "from cloudgpu.jobspecs.targets import TargetInfo\n"
        "from cloudgpu.provisioners.target import Target\n"
        "INFO = TargetInfo(name='bare', code='bare:TARGET')\n"
        "TARGET = Target(provisioner='bare:none', set_up='bare:is_there', setup_hint='bring it')\n"
        "def is_there():\n    return 'BARE' in os.environ\n"
    )
    (tmp_path / "bare-1.dist-info").mkdir()
    (tmp_path / "bare-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: bare\nVersion: 1\n")
    (tmp_path / "bare-1.dist-info" / "entry_points.txt").write_text("[cloudgpu.targets]\nbare = bare:INFO\n")
    command = [sys.executable, "-m", "cloudgpu", "check", "bare"]

    def check_with(**more: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path), **more}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)

    done = check_with()
    assert done.returncode == 6 and "bring it" in done.stdout and "is not set up" in done.stdout
    done = check_with(BARE="1")
    assert done.returncode == 0 and "bare works" in done.stdout


def test_configured_job_dirs_and_regions_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jobs"
    config = tmp_path / "config.toml"
    job_dirs = f'{{local = "{folder.as_uri()}", aws = "s3://bucket/jobs"}}'
    config.write_text(f'[defaults]\njob_dir = {job_dirs}\nresources.region = "us-west-2"\n')
    monkeypatch.setenv("CLOUDGPU_CONFIG", str(config))
    defaults = check.configured(tmp_path)
    assert defaults.regions == ("us-west-2",) and defaults.job_dir_of("aws") == "s3://bucket/jobs"
    assert defaults.job_dir_of("gcp") == "" and check.Defaults((), {"": "s3://bucket/jobs"}).job_dir_of("gcp") == ""
    [report] = check.check(["local"], CheckRequest(), 180.0, defaults=defaults)
    assert [one.values["url"] for one in report.results if one.subject == "job_dir"][1:] == [folder.as_uri()]


@pytest.mark.parametrize("line", ["job_dir = [1]", "job_dir = {aws = [1]}", "resources.region = {a = 1}"])
def test_a_configuration_that_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    (tmp_path / "config.toml").write_text(f"[defaults]\n{line}\n")
    monkeypatch.setenv("CLOUDGPU_CONFIG", str(tmp_path / "config.toml"))
    code, out, err = run(capsys, "local")
    assert code not in (0, 70) and "config.toml" in err and not out


FOLDER = None
KEY = {"GOOGLE_APPLICATION_CREDENTIALS": "{home}/file", "GOOGLE_CLOUD_PROJECT": "project"}
AWS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "canary"}
CONFIG = {"AWS_CONFIG_FILE": "{home}/file"}
SSO = {"AWS_CONFIG_FILE": "{home}/config", "AWS_PROFILE": "sso"}
SSO_LOGIN = f".aws/sso/cache/{hashlib.sha1(b'https://x.example/start').hexdigest()}.json"
PROFILE, AZURE = "azureProfile.json", {"AZURE_SUBSCRIPTION_ID": "3", "AZURE_TENANT_ID": "1", "AZURE_CLIENT_ID": "c"}
CERTIFICATE = {**AZURE, "AZURE_CLIENT_CERTIFICATE_PATH": "{home}/file"}
NO_KEY_FILE, WRONG_FORM, NO_SUBSCRIPTION = "file is no key file", "has the wrong form", "no subscription is named"
SSO_CONFIG = (
    b"[profile sso]\nsso_start_url=https://x.example/start\nsso_region=us-east-1\nregion=us-east-1\n"
    b"sso_account_id=123456789012\nsso_role_name=role\n"
)


@pytest.mark.parametrize(
    ("target", "variables", "file", "content", "says"),
    [
        ("gcp", KEY, "file", b"[]", NO_KEY_FILE),
        ("vertex", KEY, "file", b"null", NO_KEY_FILE),
        ("gcp", KEY, "file", b'{"type":"impersonated_service_account"}', NO_KEY_FILE),
        ("gcp", KEY, "file", b'{"type":"external_account","credential_source":[]}', NO_KEY_FILE),
        ("gcp", KEY, "file", b"[" * 100_000, NO_KEY_FILE),
        ("gcp", KEY, "file", b'{"type":"service_account","private_key":"canary"}', "file"),
        ("gcp", KEY, "file", b"", "not a valid json file"),
        ("gcp", KEY, "file", b"\xff\xfe\x00", "not a valid json file"),
        ("gcp", KEY, "file", FOLDER, "file cannot be read: Is a directory"),
        ("gcp", KEY, "other", b"", "file was not found"),
        ("gcp", {}, "application_default_credentials.json", b"[]", "credentials.json is no key file"),
        ("aws", CONFIG, "file", b"[default\nregion", "Unable to parse config file"),
        ("aws", CONFIG, "file", b"\xff\xfe", "Unable to parse config file"),
        ("aws", CONFIG, "file", b"", "no AWS credentials"),
        ("aws", CONFIG, "file", FOLDER, "no AWS credentials"),
        ("aws", CONFIG, "file", b"[default]\ncredential_process = echo []\n", WRONG_FORM),
        ("aws", CONFIG, "file", b"[default]\ncredential_process = echo canary\n", WRONG_FORM),
        ("aws", CONFIG, "file", b'[default]\ncredential_process = canary "\n', WRONG_FORM),
        ("aws", CONFIG, "file", b"[default]\ncredential_process = /nowhere\n", "/nowhere: No such file"),
        ("aws", {"AWS_PROFILE": "nobody\x1b[31m"}, "", b"", "could not be found"),
        ("aws", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://[bad"}, "", b"", WRONG_FORM),
        ("aws", {**AWS, "AWS_ENDPOINT_URL": "http://user:canary@[bad"}, "", b"", WRONG_FORM),
        ("aws", {**AWS, "AWS_DEFAULT_REGION": "a b/"}, "", b"", "Unknown region"),
        ("aws", {**AWS, "HTTPS_PROXY": "http://user:canary@[bad"}, "", b"", "HTTPS_PROXY is no URL"),
        ("aws", SSO, SSO_LOGIN, b"{", "cannot be read"),
        ("aws", SSO, SSO_LOGIN, b"\xff", "cannot be read"),
        ("azure", {}, PROFILE, b"[]", NO_SUBSCRIPTION),
        ("azure", {}, PROFILE, b"{", NO_SUBSCRIPTION),
        ("azure", {}, PROFILE, b"\xff", NO_SUBSCRIPTION),
        ("azure", {}, PROFILE, b'{"subscriptions":[1]}', NO_SUBSCRIPTION),
        ("azure", {}, PROFILE, FOLDER, NO_SUBSCRIPTION),
        ("azure", {**AZURE, "AZURE_CLIENT_SECRET": "canary", "AZURE_TENANT_ID": "a b["}, "", b"", "Invalid tenant ID"),
        ("azure", {**AZURE, "AZURE_AUTHORITY_HOST": "http://[bad"}, "", b"", "AZURE_… of the environment is wrong"),
        ("azure", {**AZURE, "HTTPS_PROXY": "http://[bad"}, "", b"", "HTTPS_PROXY is no URL"),
        ("azure", CERTIFICATE, "file", b"canary", "deserialize certificate"),
        ("azure", CERTIFICATE, "file", FOLDER, "Is a directory"),
        ("azure", {**AZURE, "CLOUDGPU_AZURE_ENDPOINT": "http://[bad"}, "", b"", "is not encrypted"),
    ],
)
def test_a_broken_set_up_is_a_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    target: str,
    variables: dict[str, str],
    file: str,
    content: bytes | None,
    says: str,
) -> None:
    """Malformed files and variables, which `check` exists to report, end neither it nor the checks of other targets."""
    home = Path(os.environ["HOME"])
    home.mkdir(exist_ok=True)
    (home / "config").write_bytes(SSO_CONFIG)
    if file:
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            (home / file).mkdir()
        else:
            (home / file).write_bytes(content)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("{home}", str(home)))
    code, out, err = run(capsys, target, "local", "--json")
    first, local = json.loads(out)["targets"]
    assert code == 6 and local["works"] and not first["works"], err
    [result] = [one for one in first["checks"] if one["status"] == "error"]
    assert says in result["message"] and "unexpected" not in result["message"]
    assert "canary" not in out + err and "\x1b" not in out + err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_key_file_that_may_not_be_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key.json").write_text("{}")
    (tmp_path / "key.json").chmod(0)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    code, out, _ = run(capsys, "gcp")
    assert code == 6 and "key.json cannot be read: Permission denied" in " ".join(out.split())


def test_a_target_that_raises_costs_only_its_own_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[Step]:
        raise TypeError("not so")

    intact = check._steps
    monkeypatch.setattr(check, "_steps", lambda target, mine: (broken if target == "aws" else intact)(target, mine))
    monkeypatch.setattr(check, "is_set_up", broken)
    aws, local = check.check(["aws", "local"], CheckRequest(), 180.0)
    assert local.state == "ok" and aws.state == "error"
    assert [one.message for one in aws.results] == ["unexpected TypeError: not so"]
