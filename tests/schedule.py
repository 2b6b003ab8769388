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
    "test_amqp": 41, "test_aws": 21, "test_cases": 60, "test_celery_storm": 27, "test_cli": 76,
    "test_consume_cli": 164, "test_consume_cli_kafka": 91, "test_consume_storm": 150, "test_door": 18,
    "test_door_kill": 30, "test_draft07": 18, "test_drivers": 52, "test_dynamodb": 93, "test_erase": 14,
    "test_gate": 72, "test_gate_more": 33, "test_gate_push": 23, "test_go": 16, "test_hybrid": 71, "test_java": 20,
    "test_kafka_login": 83, "test_kafka_odd": 49, "test_kafka_rebalance": 32, "test_kafka_rights": 16,
    "test_lambda": 40, "test_lambda_batch": 17, "test_lambda_kill": 38, "test_limits": 16, "test_middlewares": 28,
    "test_module_builds": 19, "test_move": 30, "test_move_doors": 50, "test_node": 14, "test_node_door": 30,
    "test_node_draft07": 21, "test_outbox_sql": 12, "test_pages": 40, "test_peers": 19, "test_pg_crash": 26,
    "test_pg_gate": 25, "test_pg_sql": 12, "test_postgres_failover": 23,
    "test_postgres_store": 115, "test_python": 35, "test_recipes": 60, "test_redis": 82, "test_redis_check": 19,
    "test_redis_failover": 140, "test_redis_login": 21, "test_redis_rights": 23, "test_relay": 81, "test_retries": 13,
    "test_rotate": 40, "test_rotation": 21,
    "test_run": 28, "test_saga": 45, "test_sdks": 19, "test_sealed": 11, "test_serve": 45, "test_shadow": 20,
    "test_sql": 62, "test_sql_rights": 16, "test_sqs": 80, "test_steps": 35, "test_switch": 18, "test_traces": 18,
    "test_upgrade": 350, "test_web": 15, "test_worst_days": 200,
}
SPLIT = {"test_pg_crash", "test_postgres_failover", "test_redis_failover", "test_saga", "test_module_builds",
         "test_worst_days"}


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
