// SPDX-License-Identifier: Apache-2.0
import hapax.Hapax;
import hapax.HapaxException;
import hapax.Key;
import hapax.Options;

import com.sun.net.httpserver.HttpServer;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Executors;

/**
 * Refunds each payment once, in two steps, however often it is asked.
 *
 * <pre>
 * hapax door --store memory: -- java -cp build/sdk/java/hapax-0.1.0.jar sdk/java/example/Payments.java 9000
 * curl -X POST localhost:9000/refunds/order-1     # twice
 * curl localhost:9000/effects
 * </pre>
 */
class Payments {
    record Refund(String payment, List<String> done) {
    }

    /** What another service does: a list of the keys that it was called with. */
    private static final List<String> EFFECTS = Collections.synchronizedList(new ArrayList<>());

    private static String effect(String what) {
        EFFECTS.add(what);
        return what + " (effect " + EFFECTS.size() + ")";
    }

    private static Refund refund(Hapax hapax, String payment) {
        return hapax.once(Key.of("refunds", payment), Refund.class, op -> {
            List<String> done = new ArrayList<>();
            for (String name : List.of("refund", "mail")) // a retry does not repeat the step that is done
                done.add(op.step(name, String.class, s -> effect(name + " " + s.key())));
            return new Refund(payment, done);
        }, Options.fingerprint(payment).what("refund"));
    }

    public static void main(String[] words) throws Exception {
        Hapax hapax = Hapax.connect();
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])), 0);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", exchange -> {
            String path = exchange.getRequestURI().getPath(), said;
            int status = 200;
            try {
                said = path.startsWith("/refunds/") ? refund(hapax, path.substring("/refunds/".length())).toString()
                        : String.join("\n", EFFECTS);
            } catch (HapaxException e) {
                e.retryAfter().ifPresent(time -> exchange.getResponseHeaders()
                        .set("Retry-After", Long.toString(time.toSeconds() + 1)));
                said = e.getMessage();
                status = 409;
            }
            byte[] body = (said + "\n").getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(status, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
        System.out.println("payments: http://127.0.0.1:" + server.getAddress().getPort());
    }
}
