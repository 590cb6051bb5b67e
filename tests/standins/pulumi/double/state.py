"""Resources in a stack's state, and their serialization: Pulumi's deployment format, version 3.

Source: pulumi/pulumi, sdk/go/common/apitype/core.go (ResourceV3, OperationV2, DeploymentV3).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import wire
from ..wire import Props
from . import VERSION
from .secrets import Crypter

STACK_TYPE = "pulumi:pulumi:Stack"
PROVIDER_PREFIX = "pulumi:providers:"
SHOWN = "[secret]"


@dataclass(eq=False)
class Resource:
    """One resource, component, provider or stack."""

    urn: str
    custom: bool
    type: str
    id: str = ""
    inputs: Props = field(default_factory=dict)
    outputs: Props = field(default_factory=dict)
    parent: str = ""
    provider: str = ""
    """`urn::id`."""
    dependencies: list[str] = field(default_factory=list)
    property_dependencies: dict[str, list[str]] = field(default_factory=dict)
    protect: bool = False
    external: bool = False
    """True: it was read, not created, so it is never deleted."""
    delete: bool = False
    """True: it was replaced and will be deleted."""
    pending_replacement: bool = False
    """True: it was deleted for a replacement that does not exist yet."""
    retain_on_delete: bool = False
    deleted_with: str = ""
    init_errors: list[str] = field(default_factory=list)
    additional_secret_outputs: list[str] = field(default_factory=list)
    created: str = ""
    modified: str = ""

    @property
    def name(self) -> str:
        return self.urn.split("::", 3)[3]

    @property
    def is_provider(self) -> bool:
        return self.type.startswith(PROVIDER_PREFIX)

    @property
    def is_default_provider(self) -> bool:
        """Return True for a default provider, whose steps are not reported."""
        return self.is_provider and self.name.startswith("default")

    def needs(self) -> set[str]:
        """Return the URNs of resources that must exist as long as this one does."""
        provider = {self.provider.rpartition("::")[0]} if self.provider else set()
        parent = {self.parent} if self.parent else set()
        return {*self.dependencies, *provider, *parent}

    def to_json(self, crypter: Crypter) -> dict[str, Any]:
        result = {name: getattr(self, attribute) for attribute, name in _NAMES.items()}
        result["inputs"], result["outputs"] = _written(self.inputs, crypter), _written(self.outputs, crypter)
        always = {"urn", "custom", "type"}
        return {name: value for name, value in result.items() if value or name in always}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], crypter: Crypter) -> Resource:
        known = {attribute: told[name] for attribute, name in _NAMES.items() if name in told}
        known["inputs"], known["outputs"] = (
            _read(told.get("inputs", {}), crypter),
            _read(told.get("outputs", {}), crypter),
        )
        return cls(**known)


_NAMES = {
    "urn": "urn",
    "custom": "custom",
    "type": "type",
    "id": "id",
    "inputs": "inputs",
    "outputs": "outputs",
    "parent": "parent",
    "provider": "provider",
    "dependencies": "dependencies",
    "property_dependencies": "propertyDependencies",
    "protect": "protect",
    "external": "external",
    "delete": "delete",
    "pending_replacement": "pendingReplacement",
    "retain_on_delete": "retainOnDelete",
    "deleted_with": "deletedWith",
    "init_errors": "initErrors",
    "additional_secret_outputs": "additionalSecretOutputs",
    "created": "created",
    "modified": "modified",
}


@dataclass
class Pending:
    """An operation in progress."""

    resource: Resource
    kind: str
    """One of creating, updating, deleting, reading."""


@dataclass
class Snapshot:
    """A stack's whole state."""

    resources: list[Resource] = field(default_factory=list)
    """Resources in dependency order."""
    pending: list[Pending] = field(default_factory=list)

    def to_json(self, crypter: Crypter) -> dict[str, Any]:
        """Return the state as a deployment."""
        deployment: dict[str, Any] = {
            "manifest": {"time": now(), "magic": "", "version": f"v{VERSION}+double"},
            "secrets_providers": {"type": "passphrase", "state": {"salt": crypter.state}},
            "metadata": {},
        }
        if self.resources:
            deployment["resources"] = [one.to_json(crypter) for one in self.resources]
        if self.pending:
            deployment["pending_operations"] = [
                {"resource": one.resource.to_json(crypter), "type": one.kind} for one in self.pending
            ]
        return deployment

    @classmethod
    def from_json(cls, deployment: Mapping[str, Any] | None, crypter: Crypter) -> Snapshot:
        result = deployment or {}
        pending = [
            Pending(Resource.from_json(one["resource"], crypter), one["type"])
            for one in result.get("pending_operations") or []
        ]
        return cls([Resource.from_json(one, crypter) for one in result.get("resources") or []], pending)


def shown(value: Any) -> Any:
    """Return a value for display, with secrets hidden."""

    def hidden(special: Any) -> Any:
        if isinstance(special, wire.Secret) or (isinstance(special, wire.Output) and special.secret):
            return SHOWN
        if isinstance(special, wire.Output):
            return shown(special.value)
        if isinstance(special, wire.Signed):
            return {wire.SIGNATURE: special.signature, **shown(special.fields)}
        return wire.UNKNOWN_TEXT

    return wire.rewritten(value, hidden)


def _written(value: Any, crypter: Crypter) -> Any:
    if isinstance(value, wire.Secret | wire.Output):
        return {wire.SIGNATURE: wire.SECRET, "ciphertext": crypter.encrypt(_written(wire.plain(value), crypter))}
    if isinstance(value, wire.Signed):
        return {wire.SIGNATURE: value.signature, **_written(value.fields, crypter)}
    if isinstance(value, wire.Unknown):
        return wire.UNKNOWN_TEXT
    if isinstance(value, Mapping):
        return {key: _written(one, crypter) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_written(one, crypter) for one in value]
    return value


def _read(value: Any, crypter: Crypter) -> Any:
    if isinstance(value, list):
        return [_read(one, crypter) for one in value]
    if not isinstance(value, Mapping):
        return value
    signature = value.get(wire.SIGNATURE)
    if signature is None:
        return {key: _read(one, crypter) for key, one in value.items()}
    if signature == wire.SECRET:
        plaintext = value.get("plaintext")  # from `stack export --show-secrets`
        known = crypter.decrypt(value["ciphertext"]) if plaintext is None else _from_text(plaintext)
        return wire.Secret(_read(known, crypter))
    return wire.Signed(signature, {key: _read(one, crypter) for key, one in value.items() if key != wire.SIGNATURE})


def _from_text(plaintext: str) -> Any:
    return json.loads(plaintext)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
