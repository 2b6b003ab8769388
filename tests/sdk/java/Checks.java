// SPDX-License-Identifier: Apache-2.0
import hapax.Codec;
import hapax.http.Attempt;
import hapax.http.Problem;
import hapax.http.Retrying;

import com.sun.net.httpserver.HttpServer;

import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** What sdk/java does without a door (test_java.py): JSON, the client of an API, the headers of a gate. */
class Checks {
    enum Kind {
        PAID, OPEN
    }

    record Line(String item, int count) {
    }

    record Order(long number, double rate, Kind kind, Optional<String> note, List<Line> lines, Map<String, Integer> more,
            int[] codes, Line none, boolean open) {
    }

    private static int failed;

    static void same(String what, Object is, Object wanted) {
        if (!String.valueOf(is).equals(String.valueOf(wanted))) {
            System.out.println(what + " is " + is + " and not " + wanted);
            failed++;
        }
    }

    /** Says whether all was the same, and ends the program. */
    static void end() {
        System.out.println(failed == 0 ? "all as it should be" : failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void refused(String what, java.util.concurrent.Callable<?> call) {
        try {
            same(what, call.call(), "refused");
        } catch (Exception e) {
            // so it should be
        }
    }

    // A record comes back as it was, and JSON that is none is refused.
    static void json() throws Exception {
        Codec json = Codec.json();
        Order order = new Order(1L << 60, -0.5, Kind.OPEN, Optional.of("\"\\\n\u0000ü☃𝄞"), List.of(new Line("a", 1)),
                Map.of("k", 2), new int[] {3, 4}, null, true);
        byte[] bytes = json.encode(order);
        Order again = (Order) json.decode(bytes, Order.class);
        same("the record", new String(json.encode(again), StandardCharsets.UTF_8), new String(bytes, StandardCharsets.UTF_8));
        same("its line", again.lines().get(0), new Line("a", 1));
        same("its note", again.note(), order.note());
        same("null", json.decode(json.encode(null), Order.class), null);
        same("an escape", json.decode(utf8("\"\\u00e4\\/\\b\""), String.class), "ä/\b");
        same("a newer member", json.decode(utf8("{\"item\":\"x\",\"count\":1,\"new\":[{}]}"), Line.class),
                new Line("x", 1));
        for (String bad : List.of("", "{", "[1,]", "01", "1 2", "\"\\x\"", "\"a", "nul", "{\"a\" 1}", "[".repeat(100), "+1", "1."))
            refused(bad, () -> json.decode(utf8(bad), Object.class));
        refused("a number over int", () -> json.decode(utf8("3000000000"), Integer.class));
        refused("a record without a member", () -> json.decode(utf8("{\"item\":\"x\"}"), Line.class));
        refused("half a surrogate pair", () -> json.encode("\ud800"));
        refused("not a number", () -> json.encode(Double.NaN));
        refused("a class of somebody's", () -> json.encode(new Object()));
    }

    // What a gate and a consumer hand on; keys of steps as in C and SQL (hapax_key_derive()).
    static void attempts() {
        Map<String, String> headers = new HashMap<>();
        same("nothing", Attempt.of(headers::get).equals(new Attempt("", 0, 0, "")), true);
        headers.putAll(Map.of("Idempotency-Attempt", "2", "Idempotency-Fence", "18446744073709551615", "Idempotency-Token", "t"));
        for (String[] pair : new String[][] {{"k-1", "k-1"}, {"\"k 1\"", "k 1"}, {"\"a\\\"b\\\\\";p=1", "a\"b\\"}}) {
            headers.put("Idempotency-Key", pair[0]);
            same(pair[0], Attempt.of(headers::get).equals(new Attempt(pair[1], 2, -1, "t")), true);
        }
        same("a fence", Attempt.of(headers::get).isOlderThan(5), false);
        same("an older fence", new Attempt("k", 1, 4, "").isOlderThan(5), true);
        headers.put("Hapax-Key", "a%20%c3%bc%22");
        same("a consumer's key", Attempt.of(headers::get).key(), "a ü\"");
        same("a step", new Attempt("order-17", 1, 1, "").stepKey("debit"), "order-17:debit");
        Attempt longKey = new Attempt("k".repeat(250), 1, 1, "");
        same("255 bytes", longKey.stepKey("abcd").length(), 255);
        same("256 bytes", longKey.stepKey("abcde"), "sha256-" + System.getProperty("long.key"));
        for (int last : new int[] {0x80, 0x81}) { // bytes that are no text: each its own key, as in the other languages
            headers.put("Hapax-Key", "%00%" + Integer.toHexString(last));
            byte[] step = Attempt.of(headers::get).stepKeyBytes("debit");
            same("its step", HexFormat.of().formatHex(step), "00" + Integer.toHexString(last) + "3a6465626974");
            same("its text", Attempt.of(headers::get).stepKey("debit"), "sha256-" + System.getProperty("key." + last));
            same("its header", Retrying.quoted(step), "\"sha256-" + System.getProperty("key." + last) + "\"");
        }
        refused("a step with ':'", () -> longKey.stepKey("a:b"));
        refused("a step of no key", () -> new Attempt("", 1, 1, "").stepKey("a"));
        same("a quoted key", Retrying.quoted("a\"b\\"), "\"a\\\"b\\\\\"");
        same("a key of other bytes", Retrying.quoted("ü").length(), 73);
    }

    /** A service that answers with the next status of a plan; the last one stays. Its keys and bodies are noted. */
    static final class Service implements AutoCloseable {
        final HttpServer server;
        final List<String> keys = new ArrayList<>(), bodies = new ArrayList<>();

        Service(Object... plan) throws Exception {
            ArrayDeque<Object> left = new ArrayDeque<>(Arrays.asList(plan));
            server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
            server.createContext("/", exchange -> {
                keys.add(String.valueOf(exchange.getRequestHeaders().getFirst("Idempotency-Key")));
                bodies.add(new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
                Object next = left.size() > 1 ? left.poll() : left.peek();
                String[] words = String.valueOf(next).split(" ", 2);
                if (words[0].equals("0")) { // hang up
                    exchange.close();
                    return;
                }
                if (words.length > 1)
                    exchange.getResponseHeaders().set("Retry-After", words[1]);
                exchange.getResponseHeaders().set("Content-Type", "application/problem+json; charset=utf-8");
                byte[] page = utf8("{\"type\":\"urn:hapax:problem:in-flight\",\"title\":\"T\",\"detail\":\"D\"}");
                exchange.sendResponseHeaders(Integer.parseInt(words[0]), page.length);
                exchange.getResponseBody().write(page);
                exchange.close();
            });
            server.start();
        }

        HttpResponse<String> send(String method, String... header) throws Exception {
            var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + server.getAddress().getPort()))
                    .method(method, BodyPublishers.ofString("pay"));
            if (header.length > 0)
                request.headers(header);
            return new Retrying(HttpClient.newHttpClient(), 4, Duration.ofMillis(2)).send(request.build(), BodyHandlers.ofString());
        }

        @Override
        public void close() {
            server.stop(0);
        }
    }

    // One key per call, the same on each retry; what is no passing failure is returned at once.
    static void retries() throws Exception {
        try (Service service = new Service(503, "429 0", "409 0", 201)) {
            same("the end", service.send("POST").statusCode(), 201);
            same("tries", service.keys.size(), 4);
            same("keys", service.keys.stream().distinct().count(), 1);
            same("bodies", service.bodies, List.of("pay", "pay", "pay", "pay"));
            service.send("POST");
            same("keys of two calls", service.keys.stream().distinct().count(), 2);
            service.send("PUT");
            same("the key of a PUT", service.keys.get(5), null);
            service.send("PUT", "Idempotency-Key", Retrying.quoted("mine"));
            same("a key of the caller's", service.keys.get(6), "\"mine\"");
        }
        for (int[] pair : new int[][] {{200, 1}, {400, 1}, {409, 1}, {501, 1}, {500, 4}})
            try (Service service = new Service(pair[0])) {
                same("a " + pair[0], service.send("POST").statusCode(), pair[0]);
                same("tries of a " + pair[0], service.keys.size(), pair[1]);
            }
        try (Service service = new Service("503 61")) {
            HttpResponse<String> response = service.send("POST");
            same("a long Retry-After", service.keys.size(), 1);
            Problem problem = Problem.of(response);
            same("a problem", problem, "hapax: in-flight: T. D");
            same("its time", problem.retryAfter(), Optional.of(Duration.ofSeconds(61)));
        }
        try (Service service = new Service("503 1", 200)) {
            long began = System.nanoTime();
            same("after a second", service.send("POST").statusCode(), 200);
            same("it waited", System.nanoTime() - began >= 1_000_000_000L, true);
        }
        try (Service service = new Service(0)) {
            refused("a service that hangs up", () -> service.send("POST"));
            same("it was asked again", service.keys.size() >= 4 && service.keys.stream().distinct().count() == 1, true);
        }
    }

    public static void main(String[] words) throws Exception {
        json();
        attempts();
        retries();
        end();
    }
}
