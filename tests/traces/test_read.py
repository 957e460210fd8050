"""Any file is read, or refused with a reason."""

import gzip
import json
import zlib
from pathlib import Path

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.traces import analyze, analyze_trace, json_stream, read
from lightning_perf.traces.columns import DetailsByRow

from .events import SMALL, analyzed, document, event, launched, write


def test_same_columns_come_out_when_the_text_is_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = SMALL * 40
    tricky = [
        event("cpu_op", 'he result "}, {" and }, {', 3000 + i, 1, shapes=[{"a": 1}, {"b": [{}, {}]}]) for i in range(9)
    ]
    file = write(tmp_path / "trace.json", document([*events, *tricky], distributedInfo={"rank": 3, "world_size": 4}))
    whole = read(file)
    for chunk in (64, 700, 1500, 4096):
        monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk)
        cut = read(file)
        assert cut.n_events == whole.n_events == len(events) + len(tricky)
        assert cut.origin == whole.origin
        assert cut.starts.tolist() == whole.starts.tolist()
        assert [cut.name(i) for i in range(len(cut))] == [whole.name(i) for i in range(len(whole))]
        assert cut.correlations.tolist() == whole.correlations.tolist()


@pytest.mark.parametrize("is_gzip", [False, True])
def test_gzip_is_detected_by_content_when_the_name_differs(tmp_path: Path, is_gzip: bool) -> None:
    name = "trace.json" if is_gzip else "trace.json.gz"
    assert len(read(write(tmp_path / name, document(SMALL), is_gzip))) == len(SMALL)


def test_several_gzip_members_are_one_text(tmp_path: Path) -> None:
    text = document(SMALL)
    parts = gzip.compress(text[:99]) + gzip.compress(text[99:]) + b"\0" * 32
    assert len(read(write(tmp_path / "t.gz", parts))) == len(SMALL)


def test_metadata_is_read_when_it_follows_the_events(tmp_path: Path) -> None:
    text = b'{"traceEvents": ' + json.dumps(SMALL).encode() + b', "distributedInfo": {"rank": 2, "world_size": 8}}'
    origin = read(write(tmp_path / "t.json", text)).origin
    assert (origin.rank, origin.world_size) == (2, 8)


def test_a_bare_list_of_events_is_a_trace(tmp_path: Path) -> None:
    assert len(read(write(tmp_path / "t.json", json.dumps(SMALL).encode()))) == len(SMALL)


def test_the_events_key_is_found_when_the_header_only_talks_about_it(tmp_path: Path) -> None:
    text = document(SMALL, note='"traceEvents": [ is what follows', nested={"traceEvents": [1]})
    assert len(read(write(tmp_path / "t.json", text))) == len(SMALL)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello", "is not JSON: it begins with"),
        (b"{}", "no list named traceEvents"),
        (b'{"a": 1, "b": 2}', "it has a, b"),
        (b'{"traceEvents": []}', "no complete profiler event"),
        (b'{"traceEvents": {"a": 1}}', "no list named traceEvents"),
        (b'{"traceEvents": [1, null, "x", []]}', "no complete profiler event"),
        (b"PK\x03\x04xxxx", "zip archive"),
        (b"\x28\xb5\x2f\xfdxxxx", "zstandard"),
        (b"\x1f\x8b" + b"\x07" * 50, "cannot be decompressed"),
        (gzip.compress(document(SMALL), mtime=0)[:-20], "cut in the middle"),  # part of the test's name
        (document(SMALL)[:-40], "cut in the middle"),
        (document(SMALL)[:20], "cut in the middle"),
        (document(SMALL)[:-30] + b"%%%", "not valid JSON"),
        (b'{"traceEvents": [' + b"[" * 500_000 + b"]" * 500_000 + b"]}", "nests its values too deeply"),
    ],
)  # fmt: skip
def test_a_file_is_refused_with_its_reason_when_it_is_no_whole_trace(
    tmp_path: Path, content: bytes, words: str
) -> None:
    file = write(tmp_path / "broken.json.gz", content)
    with pytest.raises(TraceError, match=words) as caught:
        analyze(file)
    assert "broken.json.gz" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "nowhere.json")
    with pytest.raises(TraceError, match="folder"):
        read(tmp_path)


def bomb(path: Path, n_megabytes: int, prefix: bytes = b'{"traceEvents": [') -> Path:
    pack = zlib.compressobj(9, wbits=31)
    with path.open("wb") as file:
        file.write(pack.compress(prefix))
        for _ in range(n_megabytes):
            file.write(pack.compress(b" " * (1 << 20)))
        file.write(pack.flush())
    return path


def test_a_gzip_bomb_is_stopped_when_it_decompresses_beyond_what_traces_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "FREE_BYTES", 4 << 20)
    with pytest.raises(TraceError, match="max_bytes"):
        read(bomb(tmp_path / "bomb.gz", 12))
    with pytest.raises(TraceError, match="allow more"):
        read(bomb(tmp_path / "bomb.gz", 12), max_bytes=1 << 20)
    with pytest.raises(TraceError, match="cut in the middle"):  # allowed, and then no trace
        read(bomb(tmp_path / "bomb.gz", 12), max_bytes=1 << 30)


def test_times_survive_to_the_nanosecond_when_they_are_text_integers_or_floats(tmp_path: Path) -> None:
    for starts in ((1712195495505583, 1712195495505585), (3743411222894.405, 3743411222896.407), ("5000.25", "5002.5")):
        events = [event("cpu_op", "a", starts[0], 1), event("cpu_op", "b", starts[1], "0.125")]
        columns = read(write(tmp_path / "t.json", document(events)))
        expected = round((float(starts[1]) - float(starts[0])) * 1000)
        assert columns.starts[1] - columns.starts[0] == pytest.approx(expected, abs=1)
        assert columns.durations[1] == 125


def test_invalid_times_are_left_out_with_a_note(tmp_path: Path) -> None:
    bad = [
        event("cpu_op", "negative", 1500, -5),
        event("cpu_op", "no time", 1500, 5) | {"ts": None},
        event("cpu_op", "no end", 1500, 5) | {"dur": {}},
        event("cpu_op", "nan", 1500, 5) | {"dur": "NaN"},
        event("cpu_op", "far", 1e300, 5),
        event("cpu_op", "long", 1500, 1e300),
    ]
    result = analyzed(tmp_path, [*SMALL, *bad])
    assert result.missing["events"] == "left out: 6 events without usable times"
    assert result.steps[0].duration_s == pytest.approx(1e-3)


def test_what_json_forbids_is_repaired_when_profilers_write_it(tmp_path: Path) -> None:
    text = document([*SMALL, event("cpu_op", "NAME", 1600, 1, value="VALUE")])
    text = text.replace(b'"VALUE"', b"-inf").replace(b"NAME", b"C:\\path\x01 <b>\xff")
    assert any("<b>" in name for name in read(write(tmp_path / "t.json", text)).names)


def test_hostile_names_are_data_when_they_hold_markup(tmp_path: Path) -> None:
    tag, rest = "<script>alert(1)</script>[red]", "x" * 10_000
    name = f"{tag}\x1b[31m\u202e\0{rest}"
    events = [*SMALL, event("cpu_op", name, 1600, 50), *launched(name, 1605, 1990, 5, 9)]
    result = analyzed(tmp_path, events)
    assert tag + rest in {operator.name for operator in result.operators}
    assert tag + rest in {kernel.name for kernel in result.kernels.top}


@pytest.mark.parametrize("stray_us", [0, -1e15, 3.9e15, 1e300])
def test_event_is_left_out_when_its_time_is_years_from_the_others(stray_us: float, tmp_path: Path) -> None:
    began_us = 1.7e15
    events = [one | {"ts": one["ts"] + began_us} for one in SMALL]
    plain = analyzed(tmp_path, events)
    result = analyzed(tmp_path, [event("cpu_op", "aten::mm", stray_us, 5), *events])
    assert result.steps == plain.steps
    assert result.whole == plain.whole
    assert result.missing["events"] == "left out: 1 event without usable times"


@pytest.mark.parametrize(
    "job", [{"rank": 2**63}, {"rank": 0, "world_size": 10**30}, {"rank": 2**62, "world_size": 2**62}]
)
def test_trace_is_refused_in_one_line_when_a_figure_is_out_of_bounds(job: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"^t.json is not a valid trace: Expected a count from 0 to .*$"):
        analyzed(tmp_path, SMALL, distributedInfo=job)


@pytest.mark.parametrize("n", [-(10**30), 2**62, 2**63, 10**30])
def test_size_of_a_collective_is_not_known_when_no_memory_holds_it(n: int, tmp_path: Path) -> None:
    more = {"In msg nelems": n, "dtype": "Float", "Group size": n, "Collective name": "allreduce"}
    events = [*SMALL, event("cpu_op", "record_param_comms", 1900, 50, **more),
              *launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 1910, 1990, 5, 9)]  # fmt: skip
    result = analyzed(tmp_path, events, distributedInfo={"rank": 0, "world_size": 10**7})
    assert result.communication.collectives[0].mean_bytes is None


def test_arguments_are_ignored_when_they_are_not_what_they_should_be(tmp_path: Path) -> None:
    events = [*SMALL]
    for arguments in (None, 5, [], {"correlation": "x", "stream": {}, "device": -1e9}, {"correlation": 2**70}):
        events.append(event("kernel", "k", 1990, 5) | {"args": arguments})
        events.append(event("cpu_op", "aten::mm", 1980, 5) | {"args": {"Input Dims": [[1e9, None], 7, "x"]}})
    assert analyzed(tmp_path, events).n_kernels == 2 + 5


@pytest.mark.parametrize("device", [0, 2**31 - 1])
def test_device_is_described_whatever_its_number_and_properties(device: int, tmp_path: Path) -> None:
    odd = {"name": "GPU", "totalGlobalMem": True, "computeMajor": True, "computeMinor": 0}
    properties = [{**odd, "id": device}, {**odd, "id": 1, "name": "other"}]
    events = [one | {"args": one["args"] | {"device": device}} if one["cat"] == "kernel" else one for one in SMALL]
    result = analyzed(tmp_path, events, deviceProperties=properties)
    assert result.device_name == "GPU"
    assert (result.device.n_devices, result.device.memory_bytes, result.device.capability) == (1, None, None)


def test_small_step_is_separate(tmp_path: Path) -> None:
    result = analyze_trace(read(write(tmp_path / "t.json", document(SMALL))))
    step = result.steps[0]
    microseconds = {name: round(seconds * 1e6, 3) for name, seconds in step.categories.items() if seconds}
    assert microseconds == {"kernel": 400, "runtime": 10, "data_loading": 400, "cpu_op": 25, "other": 165}
    assert result.loader.exposed_s == pytest.approx(400e-6)
    assert result.idle.host_wait_s == pytest.approx(90e-6)
    shape = result.matrix_shapes[0]
    assert (shape.m, shape.n, shape.k, shape.is_aligned, shape.device_s) == (8, 6, 4, False, pytest.approx(300e-6))


def test_usual_and_unusual_events_give_the_same_columns_when_one_entry_is_odd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 2048)
    product = event("cpu_op", "aten::bmm", 2500, 3) | {"args": {"Input Dims": [[2, 3], [3, 4]]}}
    others = [{"ph": "M", "name": "thread_name", "args": {"name": "}, {"}}, {"ph": "s", "cat": "ac2g", "ts": 1}]
    mixed = [each for i in range(40) for each in (*SMALL, product, *others)]
    usual = read(write(tmp_path / "usual.json", document(mixed)))
    odd = [each for i in range(0, len(mixed), 4) for each in (*mixed[i : i + 4], 7, {"ph": "?"}, {"no": "phase"})]
    tolerant = read(write(tmp_path / "odd.json", document(odd)))
    assert usual.n_events == len(mixed)
    assert tolerant.n_events == len(mixed) + 2 * (len(odd) - len(mixed)) // 3
    assert len(usual) == len(tolerant) == 40 * (len(SMALL) + 1)
    for column in ("kinds", "name_ids", "thread_ids", "starts", "ends", "correlations", "devices", "streams", "sizes"):
        assert getattr(usual, column).tolist() == getattr(tolerant, column).tolist(), column
    assert [usual.details.get(i) for i in range(len(usual))] == [tolerant.details.get(i) for i in range(len(usual))]
    assert sum(usual.details.get(i) is not None for i in range(len(usual))) == 80  # SMALL has one too


def test_times_count_from_the_first_event_when_a_later_part_of_the_file_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 2048)
    late_first = [event("cpu_op", "a", 9_000.5 - i * 10, 2) for i in range(200)]
    columns = read(write(tmp_path / "t.json", document(late_first)))
    assert columns.base_us == 9_000 - 1_990
    assert columns.span == (500, 1_992_500)


def test_arguments_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    product = event("cpu_op", "aten::bmm", 2500, 3) | {"args": {"Input Dims": [[2, 3], [3, 4]]}}
    columns = read(write(tmp_path / "t.json", document([*SMALL, product, product | {"args": [1]}, product])))
    assert [each.shapes for each in columns.details.values()][1:] == [[[2, 3], [3, 4]]] * 2
    found = [columns.details.get(row) for row in range(len(columns)) if columns.name(row) == "aten::bmm"]
    assert [each is None for each in found].count(True) == 1


def test_arguments_are_none_when_they_are_nested_too_deeply() -> None:
    nested = b"[" * 500_000 + b"]" * 500_000
    assert DetailsByRow({0: b'{"Input Dims": ' + nested + b"}"}).get(0) is None


def test_session_is_named_as_one_with_the_command_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "perf_session.json").write_text('{"schema_version": 1, "run": {}}')
    with pytest.raises(TraceError, match="lightning-perf report"):
        read(tmp_path / "perf_session.json")
