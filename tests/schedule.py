"""Which worker of pytest-xdist runs what, and in which order; conftest.py gives it to xdist.

A unit goes to one worker as a whole, so that a server which a file's tests share starts once. A unit is a file, but
for the files in SPLIT, whose long tests start servers of their own: there each test is a unit. The longest units
begin first; otherwise one of them would run alone in the end.
"""
import re

from xdist.scheduler.loadscope import LoadScopeScheduling

# Seconds that a file takes, roughly, of those that take long. Only the order counts.
SECONDS = {
    "test_amqp": 60, "test_aws": 19, "test_cli": 22, "test_consume_cli": 90, "test_consume_cli_kafka": 50,
    "test_consume_storm": 200, "test_dynamodb": 51, "test_gate": 29, "test_hybrid": 53, "test_kafka_login": 60,
    "test_kafka_odd": 40, "test_kafka_rebalance": 29, "test_lambda_kill": 36, "test_module_builds": 28,
    "test_outbox_sql": 23, "test_pg_crash": 47, "test_pg_gate": 29, "test_postgres_failover": 32,
    "test_postgres_store": 70, "test_redis": 53, "test_redis_failover": 108, "test_redis_login": 24, "test_relay": 75,
    "test_saga": 54, "test_serve": 26, "test_sql": 60, "test_sqs": 78, "test_steps": 37,
}
SPLIT = {"test_pg_crash", "test_postgres_failover", "test_redis_failover", "test_saga", "test_module_builds"}


class Scheduler(LoadScopeScheduling):
    def _split_scope(self, nodeid):
        path = nodeid.split("::")[0]
        name = path.rpartition("/")[2].removesuffix(".py")
        if name in SPLIT:
            return nodeid
        if name == "test_consume_storm":  # a broker for each kind, and twice as long as any other file
            kind = re.search(r"\[(kafka|rabbitmq|sqs)", nodeid)
            return f"{path}::{kind[1] if kind else ''}"
        return path

    def _assign_work_unit(self, node):
        if self.workqueue and not getattr(self, "ordered", False):
            self.ordered = True
            units = sorted(self.workqueue.items(), key=lambda unit: -self.seconds_of(unit[0]))
            self.workqueue.clear()
            self.workqueue.update(units)
        super()._assign_work_unit(node)

    @staticmethod
    def seconds_of(unit):
        name = unit.split("::")[0].rpartition("/")[2].removesuffix(".py")
        return SECONDS.get(name, 10)
