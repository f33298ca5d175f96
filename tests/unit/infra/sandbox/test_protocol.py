import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError

from infra.sandbox.limits import FILE_BYTES, OUTPUT_FACTOR
from infra.sandbox.memory_files import VALUE_BYTES
from infra.sandbox.protocol import (
    MAX_FRAME_BYTES,
    ControlRequest,
    ProtocolError,
    RunRequest,
    SandboxResult,
    SandboxStatus,
    VerifyRequest,
    decode,
    encode,
    encode_request,
    encode_result,
    parse_request,
    parse_result,
    read_message,
    seed_of,
    to_text,
)
from infra.sandbox.verifier import WALL_FACTOR
from rstar2.config import SandboxConfig

RUN = RunRequest(
    call_id="r/0/0", code="1", stdin="", cpu_s=1.0, wall_s=2.0, mem_mb=64, output_bytes=100
)
VERIFY = VerifyRequest(call_id="v", pairs=(("1", "2"),), cpu_s=1.0, wall_s=2.0, mem_mb=64)


@pytest.mark.parametrize("request_", [RUN, VERIFY, ControlRequest(kind="stop", call_id="s")])
def test_a_request_comes_through_as_it_was(request_: RunRequest) -> None:
    assert parse_request(decode(encode_request(request_)[4:])) == request_


def test_a_result_comes_through_with_the_fixed_keys() -> None:
    result = SandboxResult(call_id="a", status=SandboxStatus.OOM, stdout="Ω\x00", rc=-9)
    message = decode(encode_result(result)[4:])
    assert list(message) == [
        "call_id", "status", "rc", "stdout", "stderr", "value", "truncated", "cpu_s", "wall_s",
        "queue_s", "max_rss", "rung", "node",
    ]  # fmt: skip
    assert parse_result(message) == result


def test_unknown_keys_of_a_result_are_ignored() -> None:
    assert parse_result({"call_id": "a", "status": "ok", "session": 3}).status == "ok"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": 7}, "code: expected a string, got int"),
        ({"code": "#" * 2_000_000}, "code: 2000000 bytes, at most 1048576 are accepted"),
        ({"stdin": None}, "stdin: expected a string, got NoneType"),
        ({"cpu_s": "1"}, "cpu_s: expected int or float, got '1'"),
        ({"mem_mb": True}, "mem_mb: expected int, got True"),
        ({"wall_s": 0}, "wall_s: expected more than 0 and at most 86400, got 0"),
        (
            {"kind": "ruby"},
            "kind: expected one of python, verify, health, cancel, stop, got 'ruby'",
        ),
        ({"kind": "verify", "pairs": [["1"]]}, "pairs: expected a list of [gold, answer] strings"),
    ],
)
def test_a_bad_request_says_what_was_seen_and_expected(
    change: dict[str, object], message: str
) -> None:
    tree = {**decode(encode_request(RUN)[4:]), **change}
    with pytest.raises(ProtocolError) as caught:
        parse_request(tree)
    assert (str(caught.value), caught.value.call_id) == (message, "r/0/0")


LARGEST = {
    "cpu_seconds": ("cpu_s", 86_400),
    "wall_seconds": ("wall_s", 86_400),
    "memory_mib": ("mem_mb", 1 << 20),
    "output_bytes": ("output_bytes", 4 << 20),
}


@pytest.mark.parametrize("setting", LARGEST)
def test_a_limit_is_refused_in_the_profile_where_the_wire_would_refuse_it(setting: str) -> None:
    key, most = LARGEST[setting]
    tree = decode(encode_request(RUN)[4:])
    SandboxConfig.model_validate({setting: most})
    parse_request({**tree, key: most})
    with pytest.raises(ValidationError, match="less than or equal to"):
        SandboxConfig.model_validate({setting: most + 1})
    with pytest.raises(ProtocolError, match="at most"):
        parse_request({**tree, key: most + 1})


def test_the_longest_deadline_of_a_check_is_one_that_the_wire_carries() -> None:
    config = SandboxConfig(verify_seconds=21_600.0)
    wall = config.verify_seconds * WALL_FACTOR
    message = decode(encode_request(replace(VERIFY, cpu_s=21_600.0, wall_s=wall))[4:])
    assert parse_request(message) == replace(VERIFY, cpu_s=21_600.0, wall_s=wall)
    with pytest.raises(ValidationError):
        SandboxConfig(verify_seconds=21_600.1)


def test_the_largest_output_fits_a_frame_and_its_file() -> None:
    _, most = LARGEST["output_bytes"]
    result = SandboxResult(call_id="a", status=SandboxStatus.OK, stdout="\0" * most)
    result = replace(result, stderr=result.stdout, value="\0" * VALUE_BYTES)
    assert len(encode_result(result)) <= MAX_FRAME_BYTES
    assert most * OUTPUT_FACTOR <= FILE_BYTES


@pytest.mark.parametrize("call_id", [None, "", 7])
def test_a_request_without_a_call_id_is_refused(call_id: object) -> None:
    with pytest.raises(ProtocolError, match="call_id: expected a non-empty string"):
        parse_request({"call_id": call_id, "code": "1"})


@pytest.mark.parametrize("body", [b"\x00\xff", b"[1]", b"7"])
def test_a_frame_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body)


def test_a_lone_surrogate_cannot_be_sent() -> None:
    with pytest.raises(ProtocolError, match="cannot be sent"):
        encode({"call_id": "a", "code": "\ud800"})


async def test_a_torn_frame_is_the_end() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(encode({"call_id": "a"}) + b"\x00\x00\x00\x09{")
    reader.feed_eof()
    assert await read_message(reader) == {"call_id": "a"}
    assert await read_message(reader) is None


async def test_a_frame_of_unreasonable_length_is_refused() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolError, match="frame of 4294967295 bytes"):
        await read_message(reader)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"<object object at 0x7f12ab34cd56>", "<object object at 0x...>"),
        (b"<A object at 0x55c87a8185e0> 0xff", "<A object at 0x...> 0xff"),
        (b"0x7f12ab34cd56", "0x..."),
        (b"0x10000000000 0xdeadbeef", "0x10000000000 0xdeadbeef"),
        (b"\xff ok \x00", "\ufffd ok \x00"),
    ],
)
def test_output_becomes_text_with_addresses_blanked(data: bytes, text: str) -> None:
    assert to_text(data) == text


def test_seeds_differ_by_call_and_repeat() -> None:
    assert seed_of("r/0/0") == seed_of("r/0/0")
    assert seed_of("r/0/0") != seed_of("r/1/0")
    assert 0 <= seed_of("r/0/0") < 2**63
