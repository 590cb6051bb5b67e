"""Responses in AWS's formats."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from xml.sax.saxutils import escape

from ..faults import Call, Fault

EC2_XML = "http://ec2.amazonaws.com/doc/2016-11-15/"


@dataclass(frozen=True)
class Answer:
    """HTTP response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def edited(self, edit: Callable[[str], str]) -> Answer:
        """Return a copy with an edited body."""
        return replace(self, body=edit(self.body.decode()).encode())


class RefusedError(Exception):
    """An AWS error response to the call."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


def refuse(call: Call, code: str, message: str, status: int = 400, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an error response in the service's format."""
    code_, message_, request = escape(code), escape(message), uuid.uuid4()
    if call.service == "ec2":
        result = f"<Code>{code_}</Code><Message>{message_}</Message>"
        text = f"<Response><Errors><Error>{result}</Error></Errors><RequestID>{request}</RequestID></Response>"
    elif call.service == "s3":
        text = f"<Error><Code>{code_}</Code><Message>{message_}</Message><RequestId>{request}</RequestId></Error>"
    elif call.service in ("autoscaling", "iam", "sts"):
        result = f"<Type>Sender</Type><Code>{code_}</Code><Message>{message_}</Message>"
        text = f"<ErrorResponse><Error>{result}</Error><RequestId>{request}</RequestId></ErrorResponse>"
    else:
        return json_answer({"__type": code, "message": message}, status, headers)
    return Answer(status, text.encode(), {"Content-Type": "text/xml", **(headers or {})})


def refuse_with(call: Call, fault: Fault) -> Answer:
    """Return the response of an error or html fault."""
    if fault.kind == "html":
        page = b"<!DOCTYPE html><html><head><title>Service Unavailable</title></head><body>Try later</body></html>"
        return Answer(fault.status, page, {"Content-Type": "text/html"})
    return refuse(call, fault.code, fault.message, fault.status, fault.headers)


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return a response of a JSON service."""
    form = {"Content-Type": "application/x-amz-json-1.1", **(headers or {})}
    return Answer(status, json.dumps(value).encode(), form)


def ec2_answer(action: str, content: str) -> Answer:
    """Return a successful EC2 response with this XML content."""
    head = f'<{action}Response xmlns="{EC2_XML}"><requestId>{uuid.uuid4()}</requestId>'
    return Answer(200, f"{head}{content}</{action}Response>".encode(), {"Content-Type": "text/xml;charset=UTF-8"})
