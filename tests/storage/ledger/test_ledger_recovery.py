"""What `recover` finds after a crash, and what it does about it."""

import pytest
from refusals import of_kind

from storage.bundle.folder import bundle_digest
from storage.errors import StorageError
from storage.ledger.recovery import Step, announce_bundle, draw_path, inspect, recover
from storage.paths import Workspace


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path / "home").create()


@pytest.fixture
def ledger(sqlite_site):
    return sqlite_site.open()


def keep_draw(workspace, release_id, data=b"draw"):
    path = draw_path(workspace, release_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    from storage.artifacts import file_digest

    return file_digest(path)


def make_bundle(workspace, release_id):
    folder = workspace.bundles / release_id
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"model")
    return bundle_digest(folder)


def only(findings):
    (finding,) = findings
    return finding


def drawn(ledger, workspace, plan, **changes):
    release = ledger.reserve(plan(**changes)).release_id
    ledger.mark_drawn(release, draw_digest=keep_draw(workspace, release))
    return release


def test_a_reservation_without_a_draw_is_left_to_resume(ledger, workspace, plan):
    """Nothing exists; the same plan can go on, or a person burns it."""
    release = ledger.reserve(plan()).release_id
    assert only(recover(ledger, workspace)).step is Step.DRAW
    assert ledger.release(release).state == "reserved"
    finding = only(recover(ledger, workspace, burn=[release]))
    assert (finding.step, finding.done) == (Step.BURN, True)
    assert ledger.release(release).state == "burned"


def test_a_formal_draw_is_recorded_with_its_digest(ledger, workspace, plan):
    """Its cost doesn't depend on the draw, so the file alone suffices; what is next is said."""
    release = ledger.reserve(plan(kind="formal")).release_id
    digest = keep_draw(workspace, release)
    done, following = recover(ledger, workspace)
    assert (done.step, done.done, following.step) == (Step.MARK_DRAWN, True, Step.BUILD)
    assert ledger.release(release).draw_digest == digest


def test_a_draw_whose_cost_must_be_measured_waits_for_the_run(ledger, workspace, plan):
    """Marked with the planned epsilon it might be understated, so recover leaves it
    to the release.
    """
    release = ledger.reserve(plan()).release_id
    keep_draw(workspace, release)
    assert only(recover(ledger, workspace)).step is Step.MEASURE
    assert ledger.release(release).state == "reserved"


def test_a_recorded_draw_resumes_and_a_lost_or_changed_one_burns(ledger, workspace, plan):
    """The same bytes go on; other bytes or none never do."""
    good, lost, changed = (
        drawn(ledger, workspace, plan, key=key, population=key)
        for key in ("good", "lost", "changed")
    )
    draw_path(workspace, lost).unlink()
    keep_draw(workspace, changed, b"another")
    found = {finding.release_id: finding.step for finding in inspect(ledger, workspace)}
    assert found == {good: Step.BUILD, lost: Step.BURN, changed: Step.BURN}
    assert ledger.release(lost).state == "drawn"
    recover(ledger, workspace)
    assert [ledger.release(r).state for r in (good, lost, changed)] == ["drawn", "burned", "burned"]


def test_a_bundle_that_stands_as_announced_is_committed(ledger, workspace, plan):
    """Also when the private draw is gone since: the bundle was finished and announced."""
    release = drawn(ledger, workspace, plan)
    digest = make_bundle(workspace, release)
    assert only(inspect(ledger, workspace)).step is Step.BUILD
    announce_bundle(workspace, release, digest)
    draw_path(workspace, release).unlink()
    assert only(recover(ledger, workspace)).step is Step.COMMIT
    assert ledger.release(release).bundle_digest == digest
    assert recover(ledger, workspace) == []


def test_a_bundle_that_is_not_the_announced_one_is_not_committed(ledger, workspace, plan):
    """Changed after it was announced: named, and left to a person."""
    release = drawn(ledger, workspace, plan)
    announce_bundle(workspace, release, make_bundle(workspace, release))
    (workspace.bundles / release / "model.bin").write_bytes(b"changed")
    assert only(recover(ledger, workspace)).step is Step.STRAY_BUNDLE
    assert ledger.release(release).state == "drawn"


def test_bundles_and_rows_that_miss_each_other_are_named(ledger, workspace, plan):
    """A committed row whose bundle changed, a bundle of a burned release, a folder
    of no release.
    """
    committed = drawn(ledger, workspace, plan, key="a", population="a")
    ledger.commit(committed, bundle_digest=make_bundle(workspace, committed))
    burned = drawn(ledger, workspace, plan, key="b", population="b")
    make_bundle(workspace, burned)
    ledger.burn(burned, reason="wrong")
    (workspace.bundles / "unknown").mkdir()
    (workspace.bundles / ".staging-x").mkdir()
    found = {(f.release_id, f.step) for f in inspect(ledger, workspace)}
    assert found == {(burned, Step.STRAY_BUNDLE), ("unknown", Step.STRAY_BUNDLE)}
    (workspace.bundles / committed / "model.bin").unlink()
    assert (committed, Step.LOST_BUNDLE) in {
        (f.release_id, f.step) for f in recover(ledger, workspace)
    }


def test_a_committed_release_is_never_burned_by_hand(ledger, workspace, plan):
    """What left can't be taken back by a row."""
    release = drawn(ledger, workspace, plan)
    ledger.commit(release, bundle_digest=make_bundle(workspace, release))
    with pytest.raises(StorageError, check=of_kind("committed")):
        recover(ledger, workspace, burn=[release])
