from tests.rules.late_cases import LateRankCases


class TestDD506(LateRankCases):
    rule_id = "DD506"
    cause = "unknown"
    column = "compute_ms"
