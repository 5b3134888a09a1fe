from tests.rules.late_cases import LateRankCases


class TestDD505(LateRankCases):
    rule_id = "DD505"
    cause = "device"
    column = "kernel_slowdown"
