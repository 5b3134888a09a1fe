from tests.rules.late_cases import StarvingCases


class TestDD506(StarvingCases):
    rule_id = "DD506"
    cause = "unknown"
    column = "compute_ms"
