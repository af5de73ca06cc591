"""Where credentials come from: the environment, and the files of the cloud's own tools.

obstore reads the environment, web identity tokens, and the services of containers and machines. It
does not read `~/.aws/config` and `~/.aws/credentials`, where `aws configure` stores keys.
"""

import configparser
import os
from pathlib import Path

from penstock.errors import UsageError

_NAMES = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}
_SSO = ("sso_session", "sso_start_url", "credential_process", "source_profile")


def aws_profile(name: str | None) -> dict[str, str]:
    """The settings of a profile, in obstore's words; {} if there are no such files.

    The environment wins over the default profile, as in AWS's own tools.
    """
    wanted = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    if not wanted and "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    found, profile = dict[str, str](), wanted or "default"
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", profile if profile == "default" else f"profile {profile}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    ):
        parser = configparser.ConfigParser(interpolation=None)
        path = os.environ.get(variable) or f"~/.aws/{file}"
        try:
            parser.read(Path(path).expanduser(), "utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            first = str(error).splitlines()[0]
            raise UsageError(f"{path}: not a file of AWS's tools ({first})") from None
        except RuntimeError:  # no home directory
            continue
        if parser.has_section(section):
            found |= dict(parser[section])
    if wanted and not found:
        raise UsageError(
            f"AWS profile {wanted!r}: not in ~/.aws/config or ~/.aws/credentials; run aws configure"
        )
    if "aws_access_key_id" not in found and any(key in found for key in _SSO):
        raise UsageError(
            f"AWS profile {profile!r}: its keys come from another program; put them into the "
            f'environment first: eval "$(aws configure export-credentials --profile {profile} '
            '--format env)"'
        )
    return {_NAMES[key]: value for key, value in found.items() if key in _NAMES}
