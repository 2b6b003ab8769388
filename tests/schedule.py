"""Which worker of pytest-xdist runs what, and in which order; conftest.py gives it to xdist.

A unit goes to one worker as a whole, so that a server which a file's tests share starts once. A unit is a file, but
for the files in SPLIT, whose long tests start servers of their own: there each test is a unit. The longest units
begin first; otherwise one of them would run alone in the end.
"""
import re

from xdist.scheduler.loadscope import LoadScopeScheduling

# Seconds that a file takes, of those that take more than 10. Only the order counts. Each run of tools/suite.py writes
# its own to build/results/seconds.
SECONDS = {
    "test_amqp": 40, "test_aws": 23, "test_browser": 31, "test_cases": 60, "test_cli": 55, "test_consume_cli": 232,
    "test_consume_cli_kafka": 101, "test_consume_storm": 120, "test_door": 16, "test_door_kill": 32, "test_draft07": 17,
    "test_celery_storm": 30, "test_drivers": 92, "test_dynamodb": 100,
    "test_gate": 75, "test_gate_more": 106, "test_gate_push": 25, "test_go": 45, "test_hybrid": 85,
    "test_java": 25, "test_kafka_login": 91, "test_kafka_odd": 55, "test_kafka_rebalance": 29, "test_kafka_rights": 22,
    "test_lambda": 46, "test_lambda_batch": 19, "test_lambda_kill": 41, "test_lambda_odd": 15, "test_limits": 17,
    "test_middlewares": 31, "test_module_builds": 15, "test_outbox_sql": 12, "test_peers": 15, "test_pg_crash": 56,
    "test_pg_gate": 16, "test_pg_sql": 14, "test_postgres_failover": 53, "test_postgres_store": 96,
    "test_problems": 16, "test_python": 45, "test_redis": 88, "test_redis_check": 22, "test_redis_failover": 127,
    "test_redis_login": 21, "test_node": 35, "test_node_door": 55, "test_node_draft07": 20, "test_relay": 122,
    "test_retries": 12, "test_run": 26, "test_saga": 80, "test_sdks": 22,
    "test_serve": 63, "test_sql": 89, "test_sql_rights": 17, "test_sqs": 87, "test_steps": 55, "test_web": 22,
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
        if name == "test_cases":  # a driver's doors are its own
            return f"{path}::{nodeid.partition('[')[2].split('-')[0]}"
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
