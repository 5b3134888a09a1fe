from tests.rules.late_cases import LateRankCases


class TestDD501(LateRankCases):
    rule_id = "DD501"
    cause = "compute"
    column = "compute_ms"
