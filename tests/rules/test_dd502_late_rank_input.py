from tests.rules.late_cases import LateRankCases


class TestDD502(LateRankCases):
    rule_id = "DD502"
    cause = "input"
    column = "input_ms"
