// SPDX-License-Identifier: Apache-2.0
package hapax.messages;

import hapax.Handler;
import hapax.Hapax;
import hapax.Options;
import hapax.Told;

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Delivery;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * RabbitMQ: each message takes effect once, though it is delivered again.
 *
 * <pre>{@code
 * channel.basicConsume("payments", false, (tag, delivery) -> once.take(channel, delivery, op -> pay(delivery)), tag -> { });
 *
 * @RabbitListener(queues = "payments", ackMode = "MANUAL")
 * void pay(Message message, Channel channel) throws Exception {
 *     var says = message.getMessageProperties();
 *     once.take(channel, says.getDeliveryTag(), says.getHeaders(), says.getMessageId(), message.getBody(), op -> …);
 * }
 * }</pre>
 *
 * The key is the header Idempotency-Key, or else the message-id; a message that has neither is dead. The body is the
 * fingerprint. A message that waits for a retry stays unacknowledged meanwhile, and counts for the channel's prefetch. One
 * that is dead or parked is rejected: give the queue a dead letter exchange, since without one RabbitMQ drops what is
 * rejected.
 */
public final class RabbitOnce {
    private final Hapax hapax;
    private final String queue;
    private final Options options;

    /** queue: the namespace of the keys. options: policies, an owner. */
    public RabbitOnce(Hapax hapax, String queue, Options options) {
        this.hapax = hapax;
        this.queue = queue;
        this.options = options;
    }

    /** Runs the handler, or not, and acknowledges, requeues or rejects the delivery, once its outcome is stored. */
    public void take(Channel channel, Delivery delivery, Handler<?, ?> handler) throws IOException {
        var says = delivery.getProperties();
        take(channel, delivery.getEnvelope().getDeliveryTag(), says.getHeaders(), says.getMessageId(), delivery.getBody(),
                handler);
    }

    /** The same, of a delivery's parts. */
    public void take(Channel channel, long tag, Map<String, Object> headers, String messageId, byte[] body,
            Handler<?, ?> handler) throws IOException {
        List<String> keys = new ArrayList<>();
        if (headers != null)
            headers.forEach((name, value) -> {
                if (name.equalsIgnoreCase("Idempotency-Key"))
                    keys.add(String.valueOf(value));
            });
        Message message = new Message() {
            @Override
            void ack() throws IOException {
                channel.basicAck(tag, false);
            }

            @Override
            void again(Duration pause) {
                CompletableFuture.delayedExecutor(pause.toMillis(), TimeUnit.MILLISECONDS).execute(() -> {
                    try {
                        channel.basicNack(tag, false, true);
                    } catch (IOException | RuntimeException e) {
                        // the channel is closed, so the message was requeued
                    }
                });
            }

            @Override
            void aside(Told told) throws IOException {
                channel.basicReject(tag, false);
            }
        };
        try {
            message.take(hapax, queue, queue, keys, messageId, body, options, handler);
        } catch (IOException | RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
