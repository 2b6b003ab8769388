// SPDX-License-Identifier: Apache-2.0
package hapax.servlet;

import hapax.Answer;
import hapax.Hapax;
import hapax.HapaxException;
import hapax.Op;
import hapax.Options;
import hapax.Request;

import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;

/**
 * Runs what is behind it once for each Idempotency-Key, and gives every repeat the first response. For servlets of Jakarta EE
 * 10 and later; in Spring Boot 3 a {@code FilterRegistrationBean<OnceFilter>} puts it before some paths.
 *
 * Method, host, path, query and body make the request this request; the credentials that it carries make its caller, unless
 * the options name an owner or a caller. The response is kept as it is, with its status deciding what a retry gets, and is
 * sent once it is stored; its cookies are in no repeat. So it cannot be streamed. One over 16 MiB is passed on as it is
 * written, and is not kept: every repeat is told that it is gone. An error that is sent has its message as a text, in place
 * of the container's page. Requests with the methods GET, HEAD, OPTIONS and TRACE pass. If the claim is lost the thread is
 * interrupted. What throws has failed.
 *
 * Asynchronous handling ({@code startAsync()}, Spring's DeferredResult, Callable and CompletableFuture) is stored and sent when
 * it is completed. The filter must support it, and must be mapped for the dispatcher types REQUEST and ASYNC; otherwise, and
 * after a timeout that no listener completes, the client gets 500, and the outcome is unknown.
 *
 * A form's parameters are not read before the body is: read the body, or send JSON.
 */
public final class OnceFilter implements Filter {
    /** The request attribute that has the {@link Op}, within what runs. */
    public static final String OP = "hapax.op";
    static final String EXCHANGE = "hapax.exchange";
    private static final int BODY_MAX = 16 << 20;
    private static final Set<String> SAFE = Set.of("GET", "HEAD", "OPTIONS", "TRACE");

    private final Hapax hapax;
    private final String scope;
    private final Function<HttpServletRequest, Options> options;

    /** options: of each request, such as its owner. */
    public OnceFilter(Hapax hapax, String scope, Function<HttpServletRequest, Options> options) {
        this.hapax = hapax;
        this.scope = scope;
        this.options = options;
    }

    @Override
    public void doFilter(ServletRequest from, ServletResponse to, FilterChain chain) throws IOException, ServletException {
        HttpServletRequest request = (HttpServletRequest) from;
        HttpServletResponse response = (HttpServletResponse) to;
        boolean again = request.getDispatcherType() == DispatcherType.ASYNC;
        if (again && request.getAttribute(EXCHANGE) instanceof Exchange exchange)
            exchange.pass(chain, request, response);
        else if (again || SAFE.contains(request.getMethod()))
            chain.doFilter(request, response);
        else
            once(request, response, chain);
    }

    private void once(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        byte[] body = null; // without a key the servlet reads it itself
        if (request.getHeader("Idempotency-Key") != null)
            body = request.getInputStream().readNBytes(BODY_MAX + 1);
        Op.Turn turn;
        try {
            turn = hapax.begin(beginOf(request, body == null ? new byte[0] : body));
        } catch (HapaxException e) {
            refuse(request, response, e, false);
            return;
        }
        if (turn.op() == null)
            send(response, new Kept(response), turn.answer());
        else
            new Exchange(turn.op(), request, body, response).run(chain);
    }

    private Request beginOf(HttpServletRequest request, byte[] body) {
        List<List<Object>> headers = new ArrayList<>();
        for (String name : Collections.list(request.getHeaderNames()))
            for (String value : Collections.list(request.getHeaders(name)))
                headers.add(List.of(text(name), text(value)));
        String query = request.getQueryString();
        Request begin = new Request().set("scope", scope).set("as", "http").body(body).set("request", Map.of(
                "method", request.getMethod(), "host", String.valueOf(request.getHeader("Host")),
                "uri", request.getRequestURI() + (query == null ? "" : "?" + query), "headers", headers));
        options.apply(request).into(begin);
        return begin;
    }

    private static Object text(String header) {
        return Request.text(header.getBytes(StandardCharsets.ISO_8859_1));
    }

    /** Sends a stored response, or one of the handler's that is stored now. */
    static void send(HttpServletResponse response, Kept kept, Answer answer) throws IOException {
        byte[] body = answer.own() ? kept.body() : answer.body();
        if (answer.own())
            kept.sendHead();
        else
            response.setStatus(answer.status());
        for (String[] header : answer.headers())
            response.addHeader(header[0], header[1]);
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
    }

    /** Answers where the door did not. ran: the handler did, so that nothing says that it did not. */
    static void refuse(HttpServletRequest request, HttpServletResponse response, HapaxException e, boolean ran)
            throws IOException {
        if (response.isCommitted()) { // it was passed on
            request.getServletContext().log("hapax: the outcome of a request may not be stored", e);
        } else if (ran) { // the door is gone, or the response cannot be kept
            problem(response, 502, "urn:hapax:problem:upstream-failed", "The service gave no response",
                    "The operation may have had its effect. Ask again with the same key.");
            request.getServletContext().log("hapax: the outcome of a request may not be stored", e);
        } else if (e.answer().equals("store_down")) {
            problem(response, 503, "urn:hapax:problem:store-unavailable", "The operation cannot be protected now",
                    "Nothing was run for this request.");
        } else { // an option that is wrong
            problem(response, 500, "about:blank", "Not run", "The operation was refused.");
            request.getServletContext().log("hapax: a request was refused", e);
        }
    }

    private static void problem(HttpServletResponse response, int status, String type, String title, String detail)
            throws IOException {
        response.setStatus(status);
        response.setContentType("application/problem+json");
        if (status != 500)
            response.setHeader("Retry-After", "1");
        response.getOutputStream().write(("{\"type\":\"" + type + "\",\"title\":\"" + title + "\",\"status\":" + status
                + ",\"detail\":\"" + detail + "\"}\n").getBytes(StandardCharsets.UTF_8));
    }
}
