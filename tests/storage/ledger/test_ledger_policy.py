"""The policy file: what it grants, and what it refuses to mean."""

from decimal import Decimal

import pytest
from refusals import of_kind

from storage.errors import InputError
from storage.ledger import Policy

GOOD = """
name: agency
record_count_rounding: 50
populations:
  injuries:
    formal: {epsilon: 8, delta: 0.00001, composition: basic, neighbouring_relation: add-remove}
    asymptotic-local: {epsilon: 0.1}
    cohorts:
      2023: {asymptotic-local: {epsilon: 4}}
default:
  formal: {epsilon: 1, delta: 1e-6}
"""


def write(folder, text):
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def cap(policy, *account):
    found = policy.cap(*account)
    assert found is not None
    return found


def test_caps_are_found_by_population_cohort_and_kind(tmp_path):
    """A cohort's own cap comes first, the population's next, the default's for others; a tenth is a
    tenth.
    """
    policy = Policy.load(write(tmp_path, GOOD))
    assert cap(policy, "injuries", "2023", "asymptotic-local").epsilon == 4
    assert cap(policy, "injuries", "2024", "asymptotic-local").epsilon == Decimal("0.1")
    assert cap(policy, "injuries", "2023", "formal").delta == Decimal("0.00001")
    assert cap(policy, "fires", "2023", "formal").epsilon == 1
    assert policy.cap("fires", "2023", "asymptotic-local") is None
    assert policy.cap("injuries", "2023", "none") is None


def test_a_population_not_named_has_nothing_without_a_default():
    """Closed unless opened."""
    policy = Policy.parse({"name": "p", "populations": {"a": {"asymptotic-local": {"epsilon": 1}}}})
    assert policy.cap("b", "2023", "asymptotic-local") is None


def test_without_a_file_the_default_policy_holds():
    """The documented caps: formal (10, 0.001), asymptotic-local 20, for every cohort."""
    policy = Policy.load(None)
    formal, local = (cap(policy, "any", "any", kind) for kind in ("formal", "asymptotic-local"))
    assert (formal.epsilon, formal.delta, local.epsilon) == (10, Decimal("0.001"), 20)


def test_the_digest_is_of_the_meaning_and_survives_storage():
    """4, 4.0 and "4" are one policy; another cap is another; what the ledger stores reads back the
    same.
    """
    one, same, other = (
        Policy.parse({"name": "p", "default": {"asymptotic-local": {"epsilon": epsilon}}})
        for epsilon in (4, "4.0", "4.1")
    )
    assert one.digest == same.digest != other.digest
    assert Policy.parse(one.as_json()).digest == one.digest


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("name: p\nname: q\n", of_kind("policy-not-yaml", saying="twice")),
        ("name: p\nbudget: 3\n", of_kind("policy-field", option="budget")),
        ("name: p\ndefault: {formal: {epsilon: 1}}\n", of_kind("policy-field", saying="delta")),
        (
            "name: p\ndefault: {asymptotic-local: {epsilon: 1, delta: 0.1}}\n",
            of_kind("policy-field", saying="no delta"),
        ),
        ("name: p\ndefault: {formal: {epsilon: .nan, delta: 0.1}}\n", of_kind("not-finite")),
        ("name: p\ndefault: {asymptotic-local: {epsilon: -1}}\n", of_kind("not-positive")),
        (
            "name: p\ndefault: {asymptotic-local: {epsilon: '1.0000000000001'}}\n",
            of_kind("too-precise"),
        ),
        (
            "name: p\ndefault: {asymptotic-local: {epsilon: 1, composition: advanced}}\n",
            of_kind("policy-field", saying="composition"),
        ),
        ("name: [\n", of_kind("policy-not-yaml", saying="line")),
        ("- a\n", of_kind("policy-field", saying="policy")),
        ("name: p\napprovals: {minimum: 1}\n", of_kind("policy-field", saying="`approvers`")),
        (
            "name: p\napprovals: {minimum: 1, approvers: {Officer: Officer}}\n",
            of_kind("not-a-public-key"),
        ),
        (
            "!!python/object/apply:os.system ['true']\n",
            of_kind("policy-not-yaml", saying="policy file"),
        ),
    ],
)
def test_a_file_that_is_no_policy_is_refused_by_name(tmp_path, text, refusal):
    """The error names the file and the field or line; a key given twice is an error, not the last
    one.
    """
    path = write(tmp_path, text)
    with pytest.raises(InputError, check=refusal) as error:
        Policy.load(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    """No default takes the place of a file that was asked for."""
    with pytest.raises(InputError, check=of_kind("unreadable-file", saying="absent.yaml")):
        Policy.load(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("count", "rounded"), [(0, 0), (4, 0), (5, 10), (14, 10), (15, 20), (1234, 1230)]
)
def test_record_counts_are_rounded_halves_up(count, rounded):
    """To the nearest 10; a rounded count stays."""
    policy = Policy.load(None)
    assert policy.round_records(count) == rounded == policy.round_records(rounded)
