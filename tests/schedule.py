"""Which worker of pytest-xdist runs what, and in which order; conftest.py gives it to xdist.

A unit goes to one worker as a whole, so that a server which a file's tests share starts once. A unit is a file, but
for the files in SPLIT, whose long tests start servers of their own: there each test is a unit. Files in TOGETHER are
one unit, as they share a server that takes seconds of the processor to start. The longest units begin first; otherwise
one of them would run alone in the end.
"""
import re

from xdist.scheduler.loadscope import LoadScopeScheduling

# Seconds that a file took on a busy machine, of those that take more than 10. Only the order counts. Each run of
# tools/suite.py writes its own to build/results/seconds.
SECONDS = {
    "test_amqp": 44, "test_aws": 28, "test_browser": 13, "test_cases": 147, "test_celery_storm": 54, "test_cli": 319,
    "test_consume_cli": 237, "test_consume_cli_kafka": 91, "test_consume_examples": 38, "test_consume_storm": 200,
    "test_copy": 66, "test_damage": 14, "test_door": 59, "test_door_kill": 53, "test_draft07": 33, "test_drivers": 52,
    "test_dynamodb": 109, "test_erase": 36, "test_flake": 12, "test_gate": 225, "test_gate_more": 42,
    "test_gate_push": 41, "test_go": 47, "test_hybrid": 94, "test_java": 93, "test_kafka_login": 101,
    "test_kafka_odd": 49, "test_kafka_rebalance": 32, "test_kafka_rights": 32, "test_lambda": 50,
    "test_lambda_batch": 59, "test_lambda_clients": 19, "test_lambda_kill": 50, "test_lambda_odd": 20,
    "test_limits": 54, "test_metrics": 14, "test_middlewares": 39, "test_module_builds": 38, "test_move": 46,
    "test_move_doors": 100, "test_node": 55, "test_node_door": 43, "test_node_draft07": 28, "test_outbox_sql": 12,
    "test_pages": 80, "test_peers": 19, "test_pg_crash": 26, "test_pg_gate": 25, "test_pg_sql": 30,
    "test_postgres_failover": 46, "test_postgres_store": 151, "test_python": 35, "test_rabbit_rights": 13,
    "test_recipes": 120, "test_redis": 152, "test_redis_check": 23, "test_redis_failover": 140,
    "test_redis_login": 30, "test_redis_rights": 23, "test_relay": 119, "test_retries": 13, "test_rotate": 45,
    "test_rotation": 22, "test_run": 49, "test_saga": 45, "test_sdks": 30, "test_sealed": 39, "test_serve": 92,
    "test_shadow": 20, "test_sql": 138, "test_sql_rights": 56, "test_sqs": 116, "test_steps": 81, "test_switch": 32,
    "test_traces": 35, "test_upgrade": 700, "test_web": 60, "test_worst_days": 400,
}
SPLIT = {"test_pg_crash", "test_postgres_failover", "test_redis_failover", "test_module_builds", "test_upgrade",
         "test_worst_days"}
# RabbitMQ (rabbit.py) and Kafka (topics.py) are there once in each process that asks for them.
TOGETHER = {
    "test_consume_cli": "rabbitmq 1", "test_consume_examples": "rabbitmq 1", "test_consume_hold": "rabbitmq 1",
    "test_rabbit_rights": "rabbitmq 1", "test_relay": "rabbitmq 2", "test_saga": "rabbitmq 2",
    "test_steps": "rabbitmq 2", "test_web": "rabbitmq 2", "test_consume_cli_kafka": "kafka", "test_kafka_odd": "kafka",
    "test_kafka_rebalance": "kafka",
}


class Scheduler(LoadScopeScheduling):
    def _split_scope(self, nodeid):
        path = nodeid.split("::")[0]
        name = path.rpartition("/")[2].removesuffix(".py")
        if name in SPLIT:
            return nodeid
        if name in TOGETHER:
            return TOGETHER[name]
        if name == "test_consume_storm":  # a broker for each kind, and twice as long as any other file
            kind = re.search(r"\[(kafka|rabbitmq|sqs)", nodeid)
            return f"{path}::{kind[1]}" if kind and kind[1] != "rabbitmq" else "rabbitmq 2"
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
        files = [file for file, together in TOGETHER.items() if together == unit] or [name]
        return sum(SECONDS.get(file, 10) for file in files)
