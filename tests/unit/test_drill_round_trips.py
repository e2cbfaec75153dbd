from tests.drills.round_trips import Step, rounds_of, waited

HERE, AWAY = "10.77.1.1", "10.77.2.1"


def sent(kind: str, to: str = AWAY, by: str = HERE) -> tuple[str, str]:
    return by, f"Sending {kind} message to /{to}:7000 message size 90 bytes"


def test_each_kind_of_message_to_another_region_is_a_round_trip() -> None:
    prepare, propose = sent("PAXOS2_PREPARE_REQ"), sent("PAXOS2_PROPOSE_REQ")
    twice = sent("PAXOS2_PREPARE_REQ", "10.77.3.1")
    assert rounds_of([prepare, twice, propose], HERE, local_level=True) == 2


def test_what_the_level_does_not_wait_for_is_none() -> None:
    commit = sent("PAXOS2_COMMIT_REMOTE_REQ")
    assert rounds_of([commit], HERE, local_level=True) == 0
    assert rounds_of([commit], HERE, local_level=False) == 1


def test_messages_within_the_region_and_answers_are_none() -> None:
    events = [
        sent("READ_REQ", "10.77.1.2"),
        sent("PAXOS2_PREPARE_RSP", HERE, AWAY),
        (HERE, "Appending to commitlog"),
    ]
    assert rounds_of(events, HERE, local_level=True) == 0


def test_what_goes_on_in_parallel_counts_once_and_what_is_not_waited_for_not_at_all() -> None:
    reads = [Step(0.0, 1.0, 1), Step(0.1, 0.9, 1)]
    write, hedge = Step(1.1, 2.0, 2), Step(1.2, 5.0, 7)
    assert waited([*reads, write, hedge], until=2.1) == 3
    assert waited([], until=1.0) == 0
