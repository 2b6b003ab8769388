// SPDX-License-Identifier: Apache-2.0
package hapax.messages;

import hapax.Codec;
import hapax.Handler;
import hapax.Hapax;
import hapax.Options;
import hapax.Request;
import hapax.Told;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;

/** A message of any broker, and what is done with it. */
abstract class Message {
    private static final System.Logger LOG = System.getLogger("hapax");
    private static final Duration PAUSE = Duration.ofSeconds(1);

    /** It is done with. */
    abstract void ack() throws Exception;

    /** It is to be delivered again, after a pause. */
    abstract void again(Duration pause) throws Exception;

    /** It is dead, or parked; what puts it aside has to be safe before it is acknowledged. */
    abstract void aside(Told told) throws Exception;

    private static void warn(String what, String how, Throwable why) {
        LOG.log(System.Logger.Level.WARNING, "hapax: a message of " + what + " " + how, why);
    }

    /** keys: the values of its header Idempotency-Key; named: its key where there is none; value: what is in it. */
    void take(Hapax hapax, String scope, String what, List<String> keys, String named, Object value, Options options,
            Handler<?, ?> handler) throws Exception {
        Told told;
        try {
            byte[] body = value == null ? new byte[0] : value instanceof byte[] bytes ? bytes
                    : value instanceof String text ? text.getBytes(StandardCharsets.UTF_8) : Codec.json().encode(value);
            Request request = new Request().set("scope", scope).set("what", what).body(body);
            if (keys.isEmpty())
                request.set("key", named);
            else
                request.set("key_header", keys);
            Options.none().policy("key", "required").and(options).into(request); // without one it would run unprotected
            told = hapax.message(request, handler);
            if (told.thrown() != null)
                warn(what, "failed", told.thrown());
            if (told.todo().equals("dead") || told.todo().equals("park")) {
                warn(what, "is put aside: " + told.line(), null);
                aside(told);
                return;
            }
        } catch (Exception e) { // nobody can say, or it is not safely aside: it comes again, and is answered then
            warn(what, "waits", e);
            again(PAUSE);
            return;
        }
        if (told.todo().equals("retry"))
            again(told.after());
        else
            ack();
    }
}
