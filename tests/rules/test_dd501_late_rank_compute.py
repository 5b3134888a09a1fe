from tests.rules.late_cases import StarvingCases


class TestDD501(StarvingCases):
    rule_id = "DD501"
    cause = "compute"
    column = "compute_ms"
