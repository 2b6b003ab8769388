// SPDX-License-Identifier: Apache-2.0
package hapax.messages;

import hapax.Handler;
import hapax.Hapax;
import hapax.Options;
import hapax.Told;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * Kafka: each record takes effect once, though it is delivered again. With Spring, in a container that acknowledges manually
 * ({@code spring.kafka.listener.ack-mode=manual_immediate}):
 *
 * <pre>{@code
 * @KafkaListener(topics = "payments", groupId = "shop")
 * void pay(ConsumerRecord<String, String> record, Acknowledgment ack) throws Exception {
 *     once.take(record, ack::acknowledge, ack::nack, op -> ledger.charge(record.value(), op.fence()));
 * }
 * }</pre>
 *
 * With a consumer of Kafka's own, ack commits the offset behind the record, and again seeks to it and waits.
 */
public final class KafkaOnce {
    /** Puts a record aside, for good before it returns: publishes it to a topic of dead letters, say. */
    @FunctionalInterface
    public interface Letters {
        void put(ConsumerRecord<?, ?> record, Told why) throws Exception;
    }

    private final Hapax hapax;
    private final String scope;
    private final Function<ConsumerRecord<?, ?>, String> key;
    private final Options options;
    private final Letters letters;

    /**
     * scope: the namespace of the keys; of subscribers that each take a record, each has its own: the group. key: of a record
     * without the header Idempotency-Key; null there is none, so it is put aside. options: policies, an owner. The value is
     * the fingerprint: bytes or a text as it is, and otherwise as {@link hapax.Codec#json} has it.
     */
    public KafkaOnce(Hapax hapax, String scope, Function<ConsumerRecord<?, ?>, String> key, Options options, Letters letters) {
        this.hapax = hapax;
        this.scope = scope;
        this.key = key;
        this.options = options;
        this.letters = letters;
    }

    /** Runs the handler, or not, and says what becomes of the record. ack comes once the outcome is stored. */
    public void take(ConsumerRecord<?, ?> record, Runnable ack, Consumer<Duration> again, Handler<?, ?> handler)
            throws Exception {
        List<String> keys = new ArrayList<>();
        for (Header header : record.headers())
            if (header.key().equalsIgnoreCase("Idempotency-Key"))
                keys.add(header.value() == null ? "" : new String(header.value(), StandardCharsets.UTF_8));
        new Message() {
            @Override
            void ack() {
                ack.run();
            }

            @Override
            void again(Duration pause) {
                again.accept(pause);
            }

            @Override
            void aside(Told told) throws Exception {
                letters.put(record, told);
                ack.run();
            }
        }.take(hapax, scope, record.topic(), keys, key.apply(record), record.value(), options, handler);
    }
}
