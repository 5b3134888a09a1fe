from tests.rules.late_cases import LateRankCases


class TestDD503(LateRankCases):
    rule_id = "DD503"
    cause = "host"
    column = "host_ms"
