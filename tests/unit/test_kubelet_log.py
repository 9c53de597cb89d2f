from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model import Missing, ParseError, UsageError
from lab.parse.kubelet_log import (
    KINDS,
    EvictionEvent,
    kubelet_available_bytes,
    parse_events,
    parse_pods,
    split_structured,
)

UNIX = "1764488461.123456 node kubelet[123]: "
HEAD = "I1130 07:00:00.123456     123 eviction_manager.go:410] "
RANKED = '"Eviction manager: pods ranked for eviction" '
ORDER = ("lab/be", "lab/ctl", "lab/gua-ctl", "lab/emp", "lab/gua-emp")


def one(text, **arguments):
    events = parse_events(text, **arguments)
    assert len(events) == 1
    return events[0]


def list_forms(pods):
    """All ways in which a list of pods stands in a log line, as what follows the header."""
    return {
        "quoted items": "pods=[" + ",".join(f'"{pod}"' for pod in pods) + "]",
        "quoted list": f'pods="[{" ".join(pods)}]"',
        "bare list": f"pods=[{' '.join(pods)}]",
    }


LOG = """\
-- Journal begins at Sun 2025-11-30 06:40:00 UTC. --
1764488300.000001 node k3s[123]: time="2025-11-30T07:38:20Z" level=info msg="Starting k3s v1.36.5+k3s1"
1764488300.100000 node k3s[123]: I1130 07:38:20.100000     123 eviction_manager.go:194] "Eviction manager: starting control loop"
1764488310.000000 node k3s[123]: I1130 07:38:30.000000     123 helpers.go:977] "Eviction manager:" log="observations" signal="memory.available" resourceName="memory" available="1973236Ki" capacity="4009980Ki" time="2025-11-30 07:38:29 +0000 UTC"
1764488310.000100 node k3s[123]: I1130 07:38:30.000100     123 helpers.go:993] "Eviction manager: threshold observed resource" log="thresholds - ignoring grace period" signal="memory.available" resourceName="memory" quantity="2Gi" available="931Mi"
1764488310.000200 node k3s[123]: I1130 07:38:30.000200     123 eviction_manager.go:371] "Eviction manager: no resources are starved"
1764488461.100000 node k3s[123]: I1130 07:41:01.100000     123 eviction_manager.go:381] "Eviction manager: attempting to reclaim" resourceName="memory"
1764488461.100100 node k3s[123]: I1130 07:41:01.100100     123 container_gc.go:86] "Attempting to delete unused containers"
1764488461.123000 node k3s[123]: I1130 07:41:01.123000     123 eviction_manager.go:392] "Eviction manager: must evict pod(s) to reclaim" resourceName="memory"
1764488461.123456 node k3s[123]: I1130 07:41:01.123456     123 eviction_manager.go:410] "Eviction manager: pods ranked for eviction" pods=["lab/be","lab/ctl","lab/gua-ctl","lab/emp","lab/gua-emp"]
1764488461.123500 node k3s[123]: I1130 07:41:01.123500     123 eviction_manager.go:622] "Evicting pod" pod="lab/be" podUID="27aff94d-e0d9-43d1-84d6-9ab000aa57e2" message="The node was low on resource: memory. Threshold quantity: 2Gi, available: 931Mi. Container main was using 55296Ki, request is 0, has larger consumption of memory. "
1764488463.500000 node k3s[123]: I1130 07:41:03.500000     123 eviction_manager.go:635] "Eviction manager: pod is evicted successfully" pod="lab/be"
1764488463.500100 node k3s[123]: I1130 07:41:03.500100     123 eviction_manager.go:213] "Eviction manager: pods evicted, waiting for pod to be cleaned up" pods=["lab/be"]
1764488465.500100 node k3s[123]: I1130 07:41:05.500100     123 eviction_manager.go:464] "Eviction manager: pods successfully cleaned up" pods=["lab/be"]
1764488466.000000 node k3s[123]: E1130 07:41:06.000000     123 eviction_manager.go:633] "Eviction manager: pod failed to evict" err="timeout \\"killing\\" pod" pod="lab/ctl"
1764488467.000000 node k3s[123]: I1130 07:41:07.000000     123 eviction_manager.go:456] "Eviction manager: timed out waiting for pods to be cleaned up" pods=["lab/ctl"]
1764488468.000000 node k3s[123]: E1130 07:41:08.000000     123 eviction_manager.go:616] "Eviction manager: cannot evict a critical pod" pod="kube-system/coredns-7f496c8d7d-abcde"
1764488468.000100 node k3s[123]: I1130 07:41:08.000100     123 eviction_manager.go:444] "Eviction manager: unable to evict any pods from the node"
1764488469.000000 node k3s[123]: I1130 07:41:09.000000     123 eviction_manager.go:388] "Eviction manager: able to reduce resource pressure without evicting pods." resourceName="ephemeral-storage"
1764488470.000000 node k3s[123]: I1130 07:41:10.000000     123 eviction_manager.go:300] "Eviction manager: something of a later release" nodeCondition=["MemoryPressure"]
"""  # noqa: E501


def test_a_whole_log():
    events = parse_events(LOG)
    assert [event.kind for event in events] == [
        *["control_loop", "observation", "observation", "none_starved", "reclaim", "must_evict", "ranked"],
        *["evicting", "evicted", "waiting_cleanup", "cleaned_up", "failed", "cleanup_timeout"],
        *["critical_refused", "unable", "reduced", "other"],
    ]
    assert {event.kind for event in events} == KINDS
    by_kind = {event.kind: event for event in events}
    assert by_kind["ranked"] == EvictionEvent(time_s=1764488461.123456, kind="ranked", pods=ORDER, detail={})
    assert by_kind["evicting"].pods == by_kind["evicted"].pods == by_kind["cleaned_up"].pods == ("lab/be",)
    assert by_kind["evicting"].detail["podUID"] == "27aff94d-e0d9-43d1-84d6-9ab000aa57e2"
    assert by_kind["failed"].detail == {"err": 'timeout "killing" pod'}
    assert by_kind["failed"].pods == ("lab/ctl",)
    assert by_kind["reclaim"].detail == {"resourceName": "memory"}
    assert by_kind["critical_refused"].pods == ("kube-system/coredns-7f496c8d7d-abcde",)
    assert by_kind["other"].detail == {
        "msg": "Eviction manager: something of a later release",
        "nodeCondition": '["MemoryPressure"]',
    }
    assert events[1].detail["capacity"] == "4009980Ki"
    assert events[2].detail["quantity"] == "2Gi"


def test_available_bytes():
    events = parse_events(LOG)
    assert kubelet_available_bytes(events[1]) == 1973236 * 1024
    assert kubelet_available_bytes(events[2]) == 931 * 2**20
    evicting = next(event for event in events if event.kind == "evicting")
    assert kubelet_available_bytes(evicting) == 931 * 2**20
    for event in events:
        if event.kind not in ("observation", "evicting"):
            with pytest.raises(Missing, match=event.kind):
                kubelet_available_bytes(event)


@pytest.mark.parametrize("signal", ["pid.available", "nodefs.inodesFree"])
def test_counts_are_not_bytes(signal):
    event = EvictionEvent(time_s=1.0, kind="observation", pods=(), detail={"signal": signal, "available": "4192627"})
    with pytest.raises(Missing):
        kubelet_available_bytes(event)


def test_available_that_is_no_quantity():
    detail = {"signal": "memory.available", "available": "<nil>"}
    with pytest.raises(ParseError, match="nil"):
        kubelet_available_bytes(EvictionEvent(time_s=1.0, kind="observation", pods=(), detail=detail))


@pytest.mark.parametrize("form", list(list_forms(ORDER)))
def test_every_list_form_gives_the_same_ranking(form):
    event = one(UNIX + HEAD + RANKED + list_forms(ORDER)[form])
    assert (event.kind, event.pods, event.time_s) == ("ranked", ORDER, 1764488461.123456)


@pytest.mark.parametrize(
    "prefix",
    [
        "Nov 30 07:00:00 node k3s[3814777]: ",
        "Nov  3 07:00:00 node kubelet[1]: ",
        "2025-11-30T07:00:00+0100 node kubelet[1]: ",
        "Nov 30 07:00:00 node microk8s.daemon-kubelite[24749]: ",
        "",
    ],
)
def test_without_an_absolute_time_the_header_and_the_year_count(prefix):
    event = one(prefix + HEAD + RANKED + 'pods=["lab/be"]', year=2025)
    assert event.time_s == datetime(2025, 11, 30, 7, 0, 0, 123456, tzinfo=UTC).timestamp()
    with pytest.raises(UsageError, match="year"):
        parse_events(prefix + HEAD + RANKED + 'pods=["lab/be"]')


def test_year_is_not_asked_for_when_no_line_needs_it():
    assert parse_events('I1130 07:00:00.123456     123 kubelet.go:1] "Starting"\nfree text\n') == ()
    assert parse_events("") == ()


def test_new_year_in_bare_klog_text():
    lines = [
        f'I{date} 23:59:59.000000     123 eviction_manager.go:194] "Eviction manager: starting control loop"'
        for date in ("1130", "1231", "0101", "0102")
    ]
    times = [event.time_s for event in parse_events("\n".join(lines), year=2025)]
    days = [datetime.fromtimestamp(time, tz=UTC).date().isoformat() for time in times]
    assert days == ["2025-11-30", "2025-12-31", "2026-01-01", "2026-01-02"]


def test_impossible_date():
    with pytest.raises(ParseError, match="impossible"):
        parse_events(HEAD.replace("I1130", "I1331") + '"Eviction manager: starting control loop"', year=2025)


def json_line(message, **more):
    record = {"ts": 1764488461123.456, "caller": "eviction/eviction_manager.go:410", "msg": message, "v": 0}
    return json.dumps({**record, **more})


def json_pods(pods):
    return [dict(zip(("namespace", "name"), pod.split("/"), strict=True)) for pod in pods]


def test_json_format():
    line = json_line("Eviction manager: pods ranked for eviction", pods=json_pods(ORDER))
    assert one(line) == EvictionEvent(time_s=1764488461.123456, kind="ranked", pods=ORDER, detail={})
    assert one("1764488999.500000 node kubelet[1]: " + line).time_s == 1764488999.5
    assert one(json_line("Eviction manager: starting control loop", ts=1764488461.5)).time_s == 1764488461.5


def test_json_single_pod_and_extra_keys():
    line = json_line("Eviction manager: pod failed to evict", pod={"name": "be", "namespace": "lab"}, err="boom", n=3)
    assert one(line) == EvictionEvent(
        time_s=1764488461.123456, kind="failed", pods=("lab/be",), detail={"err": "boom", "n": "3"}
    )


@pytest.mark.parametrize(
    "line",
    [
        json_line("Eviction manager: pods ranked for eviction"),
        json_line("Eviction manager: pods ranked for eviction", pods=[]),
        json_line("Eviction manager: pods ranked for eviction", pods={"name": "be", "namespace": "lab"}),
        json_line("Eviction manager: pods ranked for eviction", pods=[{"name": "be"}]),
        json_line("Eviction manager: pods ranked for eviction", pods=[None]),
        json_line("Eviction manager: pods ranked for eviction", pods=json_pods(["lab/be", "lab/be"])),
        json_line("Eviction manager: pods ranked for eviction", pods=json_pods(ORDER), ts="soon"),
        json_line("Eviction manager: pods ranked for eviction", pods=json_pods(ORDER), ts=None),
        json_line("Eviction manager: pods ranked for eviction", pods=json_pods(ORDER))[:-5],
    ],
)
def test_json_lines_that_are_not_whole(line):
    with pytest.raises(ParseError):
        parse_events(line)


def test_lines_of_others_are_skipped():
    text = "\n".join(
        [
            json.dumps({"ts": 1.0, "caller": "kubelet/kubelet.go:1", "msg": "Evicting pod", "pod": "x"}),
            '{"level":"info","msg":"cut of',
            "{" * 20000,
            UNIX + 'I1130 07:00:00.123456 123 updater.go:9] "Evicting pod" pod="lab/x',
            UNIX + r'time="2025-11-30T07:00:00Z" level=info msg="eviction_manager.go:410] \"Eviction manager: x"',
            UNIX + "E1130 07:00:00.123456 123 image_gc.go:9] unstructured [text",
            "-- No entries --",
        ]
    )
    assert parse_events(text) == ()


def test_carriage_returns_and_a_directory_in_the_header():
    line = UNIX + HEAD.replace("eviction_manager", "eviction/eviction_manager") + RANKED + 'pods=["lab/be"]\r\n'
    assert one(line).pods == ("lab/be",)


def test_unstructured_line_of_an_old_release_is_kept_as_other():
    event = one(UNIX + HEAD + "eviction manager: must evict pod(s) to reclaim memory")
    assert (event.kind, event.detail) == ("other", {"msg": "eviction manager: must evict pod(s) to reclaim memory"})


@pytest.mark.parametrize("prefix", ["", UNIX])
def test_multi_line_error(prefix):
    lines = [HEAD + '"Eviction manager: pod failed to evict" err=<', "\tfirst", "\tpods=[lab/x", ' > pod="lab/be"']
    after = HEAD + RANKED + 'pods=["lab/ctl"]'
    events = parse_events("\n".join(prefix + line for line in [*lines, after]), year=2025)
    assert [(event.kind, event.pods) for event in events] == [("failed", ("lab/be",)), ("ranked", ("lab/ctl",))]
    assert events[0].detail == {"err": "first\npods=[lab/x"}


SWALLOWED = HEAD + RANKED + 'pods=["lab/ctl"]'


@pytest.mark.parametrize("rest", [[], ["\tfirst"], ["\tfirst", SWALLOWED], [SWALLOWED, ' > pod="lab/be"']])
def test_multi_line_error_without_an_end(rest):
    start = HEAD + '"Eviction manager: pod failed to evict" err=<'
    with pytest.raises(ParseError, match="does not end"):
        parse_events("\n".join([start, *rest]), year=2025)


@pytest.mark.parametrize(
    "line",
    [
        HEAD + RANKED,
        HEAD + RANKED + "pods=",
        HEAD + RANKED + "pods=[]",
        HEAD + RANKED + 'pods="lab/be"',
        HEAD + RANKED + 'pods=["lab/be" "lab/ctl"]',
        HEAD + RANKED + 'pods=["lab/be",]',
        HEAD + RANKED + 'pods=["lab/be"]["lab/ctl"]',
        HEAD + RANKED + 'pods=["lab/be","lab/be"]',
        HEAD + RANKED + 'pods=["lab/be"] pods=["lab/ctl"]',
        HEAD + RANKED + "pods=[lab/be <nil>]",
        HEAD + RANKED + "pods=[be ctl]",
        HEAD + RANKED + 'pods=["lab/be"] lab/ctl',
        HEAD + RANKED + 'pods=["lab/be"}',
        HEAD + RANKED + r'pods=["lab/\q"]',
        HEAD + '"Eviction manager: pod is evicted successfully"',
        HEAD + '"Eviction manager: pod is evicted successfully" pod=""',
        HEAD + '"Eviction manager: attempting to reclaim"',
        HEAD,
        HEAD.rstrip(),
        HEAD[5:] + RANKED + 'pods=["lab/be"]',
        'eviction_manager.go:410] "Eviction manager: pods ranked for eviction" pods=["lab/be"]',
        RANKED + 'pods=["lab/be"]',
        "I1130 07:00:00.123456     123 eviction_man",
    ],
)
@pytest.mark.parametrize("prefix", ["", UNIX])
def test_lines_that_are_not_whole(prefix, line):
    with pytest.raises(ParseError):
        parse_events(prefix + line, year=2025)


def test_error_quotes_the_line():
    with pytest.raises(ParseError, match="lab/unfinished"):
        parse_events(UNIX + HEAD + RANKED + 'pods=["lab/unfinished')


@pytest.mark.parametrize(
    ("text", "message", "fields"),
    [
        ('"a b"', "a b", {}),
        ('"a" k="v w" n=3 e=""', "a", {"k": "v w", "n": "3", "e": ""}),
        ('"a" l=[1, 2] s={A:x B:{C:"}"}} k=1', "a", {"l": "[1, 2]", "s": '{A:x B:{C:"}"}}', "k": "1"}),
        (r'"say \"x\"" k="tab\tnl\nbs\\ \x41\u00e9\U0001f600"', 'say "x"', {"k": "tab\tnl\nbs\\ Aé😀"}),
        ('"a" err=<nil> at=1 Jan 2025 k="v"', "a", {"err": "<nil>", "at": "1 Jan 2025", "k": "v"}),
        ('"a" empty= k="v"', "a", {"empty": "", "k": "v"}),
        ('"a" k="=<" j="[not a list"', "a", {"k": "=<", "j": "[not a list"}),
        ("no quotes k=v", "no quotes k=v", {}),
    ],
)
def test_tokenizer(text, message, fields):
    assert split_structured(text) == (message, fields)


@pytest.mark.parametrize(
    "text",
    [
        *["", '"a', '"a" k', '"a" k="v', '"a" k="v"x=1', '"a" =1', '"a"k="v"', '"a" k="1" k="1"'],
        *['"a" k=[1', '"a" k={[}]', '"a" k=[1]]', r'"a" k="\z"', r'"a" k="\U00110000"', '"a" k=<\n\tx'],
    ],
)
def test_tokenizer_refuses(text):
    with pytest.raises(ParseError):
        split_structured(text)


@pytest.mark.parametrize(
    ("value", "pods"),
    [("[]", ()), ("[a/b]", ("a/b",)), ('["a/b","c/d"]', ("a/b", "c/d")), ("[a/b c/d]", ("a/b", "c/d"))],
)
def test_pod_lists(value, pods):
    assert parse_pods(value) == pods


NAME = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?", fullmatch=True)
PODS = st.lists(st.tuples(NAME, NAME).map("/".join), min_size=1, max_size=6, unique=True)
FORMS = st.sampled_from(["quoted items", "quoted list", "bare list", "json"])


def ranked_line(pods, form, prefix):
    if form == "json":
        return prefix + json_line("Eviction manager: pods ranked for eviction", pods=json_pods(pods))
    return prefix + HEAD + RANKED + list_forms(pods)[form]


@given(PODS, FORMS, st.sampled_from(["", UNIX]))
def test_round_trip_of_every_form(pods, form, prefix):
    event = one(ranked_line(pods, form, prefix) + "\n", year=2025)
    assert (event.kind, event.pods) == ("ranked", tuple(pods))


@given(PODS, FORMS, st.sampled_from(["", UNIX]), st.data())
def test_a_cut_line_never_gives_an_order(pods, form, prefix, data):
    line = ranked_line(pods, form, prefix)
    start = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(start, len(line)))
    try:
        events = parse_events(line[start:end], year=2025)
    except ParseError:
        return
    assert all(event.pods == tuple(pods) for event in events)


@given(PODS, FORMS, st.data())
def test_a_line_cut_after_its_message_always_raises(pods, form, data):
    line = ranked_line(pods, form, UNIX)
    end = data.draw(st.integers(line.index("pods ranked"), len(line) - 1))
    with pytest.raises(ParseError):
        parse_events(LOG + line[:end])


@given(PODS, PODS, st.integers(1, 80))
def test_two_lines_run_together_never_give_an_order(first, second, cut):
    line = UNIX + HEAD + RANKED
    text = (line + list_forms(first)["bare list"])[:-1] + (line + list_forms(second)["bare list"])[cut:]
    with pytest.raises(ParseError):
        parse_events(text)


@given(
    st.dictionaries(NAME.map(lambda n: "k" + n.replace(".", "")), st.text(max_size=20), max_size=4),
    st.text(max_size=20),
)
def test_quoted_strings_round_trip(fields, message):
    def quote(text):
        body = "".join(
            character
            if character.isprintable() and character not in '"\\'
            else {'"': r"\"", "\\": r"\\", "\n": r"\n", "\t": r"\t"}.get(character, f"\\U{ord(character):08x}")
            for character in text
        )
        return f'"{body}"'

    line = " ".join([quote(message), *(f"{key}={quote(value)}" for key, value in fields.items())])
    assert split_structured(line) == (message, fields)


def test_a_cut_time_is_not_taken_for_a_time():
    with pytest.raises(ParseError):
        parse_events((UNIX + HEAD + RANKED + 'pods=["lab/be"]')[1:], year=2025)


@given(st.text(max_size=60))
def test_any_text_is_skipped_or_refused(text):
    for line in (text, UNIX + text, UNIX + HEAD + text):
        try:
            events = parse_events(line, year=2025)
        except ParseError:
            continue
        assert all(event.kind in KINDS for event in events)
        assert not any(event.kind == "ranked" for event in events)
