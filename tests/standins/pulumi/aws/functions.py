"""Lambda functions, their EventBridge triggers, and CloudWatch log groups."""

from __future__ import annotations

import io
import zipfile
from typing import Any

from .. import wire
from ..provider import CheckError, Made
from ..wire import Props
from .cloud import AwsKind, delete_if_exists, none_if_gone, pairs, request, shape_of, tagged


class Function(AwsKind):
    type = "aws:lambda/function:Function"
    service = "lambda"
    settings = frozenset(
        {"runtime", "handler", "role", "timeout", "memorySize", "loggingConfig", "environment", "description"}
    )
    inputs = settings | {"name", "code", "tags", "region", "architectures", "publish"}
    required = frozenset({"role"})
    replaces = frozenset({"name", "region"})
    computed = frozenset(
        {"arn", "tagsAll", "region", "invokeArn", "qualifiedArn", "version", "lastModified", "codeSha256"}
    )
    autoname = "name"

    def check(self, inputs: Props) -> Props:
        if "code" not in inputs:
            raise CheckError("code", "the stand-in models functions whose code is an archive only")
        return {"memorySize": 128, "timeout": 3, **inputs}

    def create(self, name: str, inputs: Props) -> Made:
        made = self.api(inputs).create_function(
            FunctionName=inputs["name"],
            Code={"ZipFile": zipped(inputs["code"])},
            Tags=inputs.get("tags") or {},
            Publish=inputs.get("publish", False),
            **self._settings(inputs, "CreateFunctionRequest"),
        )
        return Made(inputs["name"], {**self._outputs(made, inputs), **tagged(inputs)})

    def _settings(self, inputs: Props, shape: str) -> dict[str, Any]:
        given = {name: value for name, value in inputs.items() if name in self.settings}
        made: dict[str, Any] = request(shape_of(self.api(inputs), shape), given)
        return made

    def _outputs(self, told: dict[str, Any], inputs: Props) -> Props:
        return {
            "arn": told["FunctionArn"],
            "region": self.where(inputs),
            "qualifiedArn": f"{told['FunctionArn']}:{told['Version']}",
            "version": told["Version"],
            "codeSha256": told.get("CodeSha256", ""),
            "lastModified": str(told.get("LastModified", "")),
        }

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).get_function(FunctionName=identity))
        if result is None:
            return None
        settings = result["Configuration"]
        kept = {"timeout": "Timeout", "memorySize": "MemorySize", "handler": "Handler", "runtime": "Runtime"}
        tags = result.get("Tags") or {}
        return {"name": identity, **{key: settings[name] for key, name in kept.items()}, "tags": tags, "tagsAll": tags}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        functions = self.api(new)
        if old["code"] != new["code"]:
            functions.update_function_code(FunctionName=identity, ZipFile=zipped(new["code"]))
        functions.update_function_configuration(
            FunctionName=identity, **self._settings(new, "UpdateFunctionConfigurationRequest")
        )
        result = functions.get_function(FunctionName=identity)["Configuration"]
        gone = [key for key in old.get("tags") or {} if key not in (new.get("tags") or {})]
        if gone:
            functions.untag_resource(Resource=result["FunctionArn"], TagKeys=gone)
        if new.get("tags"):
            functions.tag_resource(Resource=result["FunctionArn"], Tags=new["tags"])
        return {**self._outputs(result, new), **tagged(new)}

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).delete_function(FunctionName=identity))


def zipped(archive: Any) -> bytes:
    """Return an AssetArchive of texts as a zip file, byte-identical each time. Raises TypeError for other archives."""
    if not isinstance(archive, wire.Signed) or "assets" not in archive.fields:
        raise TypeError(f"the stand-in models archives of assets only: {archive!r}")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, asset in sorted(archive.fields["assets"].items()):
            if "text" not in asset.fields:
                raise TypeError(f"{name}: the stand-in models assets of text only")
            made.writestr(zipfile.ZipInfo(name), asset.fields["text"])
    return file.getvalue()


class Permission(AwsKind):
    type = "aws:lambda/permission:Permission"
    service = "lambda"
    inputs = frozenset({"statementId", "action", "function", "principal", "sourceArn", "sourceAccount", "region"})
    required = frozenset({"action", "function", "principal"})
    replaces = inputs
    computed = frozenset({"region"})
    autoname = "statementId"

    def create(self, name: str, inputs: Props) -> Made:
        names = {"function": "FunctionName", "sourceArn": "SourceArn", "sourceAccount": "SourceAccount"}
        names |= {"statementId": "StatementId", "action": "Action", "principal": "Principal"}
        wanted = {field: inputs[key] for key, field in names.items() if key in inputs}
        self.api(inputs).add_permission(**wanted)
        return Made(inputs["statementId"], {"region": self.where(inputs)})

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).get_policy(FunctionName=state["function"])["Policy"])
        return {"statementId": identity} if result is not None and f'"{identity}"' in result else None

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(
            lambda: self.api(state).remove_permission(FunctionName=state["function"], StatementId=identity)
        )


class EventRule(AwsKind):
    type = "aws:cloudwatch/eventRule:EventRule"
    service = "events"
    inputs = frozenset({"name", "scheduleExpression", "eventPattern", "description", "state", "tags", "region"})
    replaces = frozenset({"name", "region"})
    computed = frozenset({"arn", "tagsAll", "region"})
    autoname = "name"

    def create(self, name: str, inputs: Props) -> Made:
        return Made(inputs["name"], {"arn": self._put(inputs), "region": self.where(inputs), **tagged(inputs)})

    def _put(self, inputs: Props) -> str:
        names = {"name": "Name", "scheduleExpression": "ScheduleExpression", "eventPattern": "EventPattern"}
        names |= {"description": "Description", "state": "State"}
        wanted = {field: inputs[key] for key, field in names.items() if key in inputs}
        return str(self.api(inputs).put_rule(**wanted, Tags=pairs(inputs.get("tags")))["RuleArn"])

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).describe_rule(Name=identity))
        if result is None:
            return None
        return {"name": identity, "scheduleExpression": result.get("ScheduleExpression", ""), "arn": result["Arn"]}

    def update(self, identity: str, old: Props, new: Props) -> Props:
        arn = self._put(new)
        gone = [key for key in old.get("tags") or {} if key not in (new.get("tags") or {})]
        if gone:
            self.api(new).untag_resource(ResourceARN=arn, TagKeys=gone)
        if new.get("tags"):
            self.api(new).tag_resource(ResourceARN=arn, Tags=pairs(new["tags"]))
        return {"arn": arn, **tagged(new)}

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).delete_rule(Name=identity))


class EventTarget(AwsKind):
    type = "aws:cloudwatch/eventTarget:EventTarget"
    service = "events"
    inputs = frozenset({"rule", "targetId", "arn", "input", "roleArn", "region"})
    required = frozenset({"rule", "arn"})
    replaces = frozenset({"rule", "targetId", "region"})
    computed = frozenset({"region"})
    autoname = "targetId"

    def create(self, name: str, inputs: Props) -> Made:
        self._put(inputs)
        return Made(f"{inputs['rule']}-{inputs['targetId']}", {"region": self.where(inputs)})

    def _put(self, inputs: Props) -> None:
        names = {"targetId": "Id", "arn": "Arn", "input": "Input", "roleArn": "RoleArn"}
        wanted = {field: inputs[key] for key, field in names.items() if key in inputs}
        self.api(inputs).put_targets(Rule=inputs["rule"], Targets=[wanted])

    def read(self, identity: str, state: Props) -> Props | None:
        result = none_if_gone(lambda: self.api(state).list_targets_by_rule(Rule=state["rule"])["Targets"])
        return next(({"arn": one["Arn"]} for one in result or [] if one["Id"] == state["targetId"]), None)

    def update(self, identity: str, old: Props, new: Props) -> Props:
        self._put(new)
        return {}

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).remove_targets(Rule=state["rule"], Ids=[state["targetId"]]))


class LogGroup(AwsKind):
    type = "aws:cloudwatch/logGroup:LogGroup"
    service = "logs"
    inputs = frozenset({"name", "retentionInDays", "tags", "region", "skipDestroy"})
    replaces = frozenset({"name", "region"})
    computed = frozenset({"arn", "tagsAll", "region"})
    autoname = "name"

    def create(self, name: str, inputs: Props) -> Made:
        logs, identity = self.api(inputs), inputs["name"]
        logs.create_log_group(logGroupName=identity, tags=inputs.get("tags") or {})
        self._keep(logs, inputs)
        arn = self.arn(inputs, "logs", f"log-group:{identity}")
        return Made(identity, {"arn": arn, "region": self.where(inputs), **tagged(inputs)})

    def _keep(self, logs: Any, inputs: Props) -> None:
        if inputs.get("retentionInDays"):
            logs.put_retention_policy(logGroupName=inputs["name"], retentionInDays=inputs["retentionInDays"])
        else:
            logs.delete_retention_policy(logGroupName=inputs["name"])

    def read(self, identity: str, state: Props) -> Props | None:
        result = self.api(state).describe_log_groups(logGroupNamePrefix=identity)["logGroups"]
        there = [one for one in result if one["logGroupName"] == identity]
        return {"name": identity, "retentionInDays": there[0].get("retentionInDays", 0)} if there else None

    def update(self, identity: str, old: Props, new: Props) -> Props:
        logs = self.api(new)
        self._keep(logs, new)
        arn = self.arn(new, "logs", f"log-group:{identity}")
        gone = [key for key in old.get("tags") or {} if key not in (new.get("tags") or {})]
        if gone:
            logs.untag_resource(resourceArn=arn, tagKeys=gone)
        if new.get("tags"):
            logs.tag_resource(resourceArn=arn, tags=new["tags"])
        return tagged(new)

    def delete(self, identity: str, state: Props) -> None:
        delete_if_exists(lambda: self.api(state).delete_log_group(logGroupName=identity))


KINDS = (Function, Permission, EventRule, EventTarget, LogGroup)
