"""Where credentials come from: the environment, and the files of the cloud's own tools.

obstore reads the environment, web identity tokens, and the services of containers and machines. It
does not read `~/.aws/config` and `~/.aws/credentials`, where `aws configure` stores keys. Nor does
it read Azure's connection string and the variables of the `az` program. It asks `az` for a
token only if told to.
"""

import configparser
import json
import os
import shutil
from pathlib import Path

from millstream.errors import UsageError

ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""of each scheme; obstore reads them"""
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


# The variables of the az program, and the parts of a connection string, in obstore's words.
_AZURE_VARIABLES = {"AZURE_STORAGE_ACCOUNT": "account_name", "AZURE_STORAGE_KEY": "account_key"}
_AZURE_PARTS = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}
_AZURE_OWN = {
    "account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
    "account_key": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_MASTER_KEY",
    ),
    "sas_key": ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    "endpoint": ENDPOINT_VARIABLES["az"],
}
"""what obstore reads itself; these win"""
_AZURE_OTHER = ("AZURE_STORAGE_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE")
"""credentials that obstore reads itself"""


def azure_settings(*, anonymous: bool) -> dict[str, str | bool]:
    """Settings of Azure's own tools that obstore does not read, in its words.

    Without any credential in the environment, those of `az login` are used, if there was one.
    """
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    parts = dict(part.partition("=")[::2] for part in text.split(";") if part)
    found = {word: parts[name] for name, word in _AZURE_PARTS.items() if name in parts}
    if "account_name" in found and "endpoint" not in found and "EndpointSuffix" in parts:
        found["endpoint"] = f"https://{found['account_name']}.blob.{parts['EndpointSuffix']}"
    for name, word in _AZURE_VARIABLES.items():
        if os.environ.get(name):
            found[word] = os.environ[name]
    own = {word for word, names in _AZURE_OWN.items() if any(map(os.environ.get, names))}
    has_secret = bool({"account_key", "sas_key"} & (own | found.keys()))
    has_secret |= any(map(os.environ.get, _AZURE_OTHER))
    settings: dict[str, str | bool] = {
        word: value for word, value in found.items() if word not in own
    }
    if anonymous:
        settings = {
            word: settings[word] for word in ("account_name", "endpoint") if word in settings
        }
    elif not has_secret and _is_logged_in():
        settings["use_azure_cli"] = True
    return settings


def _is_logged_in() -> bool:
    """Whether the `az` program is there, and somebody has run `az login`."""
    directory = os.environ.get("AZURE_CONFIG_DIR") or "~/.azure"
    try:
        text = Path(directory, "azureProfile.json").expanduser().read_text("utf-8-sig")
        subscriptions = json.loads(text).get("subscriptions")
    except (OSError, RuntimeError, ValueError):
        return False
    return bool(subscriptions) and shutil.which("az") is not None
