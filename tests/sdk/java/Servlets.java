// SPDX-License-Identifier: Apache-2.0
import hapax.Op;
import hapax.servlet.OnceFilter;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.AsyncEvent;
import jakarta.servlet.AsyncListener;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicInteger;

/** Servlets behind hapax.servlet.OnceFilter, in a Tomcat (Shop.java). */
class Servlets {
    static class Payments extends HttpServlet {
        private static final long serialVersionUID = 1;
        private final AtomicInteger charges = new AtomicInteger();

        @Override
        protected void doPost(HttpServletRequest request, HttpServletResponse response) throws IOException {
            String amount = new String(request.getInputStream().readAllBytes(), StandardCharsets.UTF_8).replaceAll("[^0-9]", "");
            if (amount.equals("13"))
                throw new IllegalStateException("thirteen");
            if (amount.equals("17")) {
                response.setHeader("X-Part", "first");
                for (int mib = 0; mib < 17; mib++)
                    response.getWriter().print("x".repeat(1 << 20));
                response.setHeader("X-Part", "too late");
                return;
            }
            if (amount.equals("0")) {
                response.sendError(400, "an amount above 0 is needed");
                return;
            }
            response.setStatus(201);
            response.setContentType("text/plain;charset=UTF-8");
            response.setHeader("Location", "/payments/1");
            response.getWriter().println("charge " + ((Op) request.getAttribute(OnceFilter.OP)).key() + " ü (effect "
                    + charges.incrementAndGet() + ")");
        }
    }

    /** What servlets do to a response besides writing a page: the last part of the path says it. */
    static class Odd extends HttpServlet {
        private static final long serialVersionUID = 1;

        private static void write(AsyncContext to, int status, String text) {
            try {
                ((HttpServletResponse) to.getResponse()).setStatus(status);
                to.getResponse().getWriter().print(text);
                to.complete();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        @Override
        protected void doPost(HttpServletRequest request, HttpServletResponse response) throws IOException {
            switch (request.getPathInfo().substring(1)) {
                case "cookies" -> {
                    Cookie cookie = new Cookie("card", "7");
                    cookie.setMaxAge(60);
                    cookie.setPath("/p");
                    cookie.setSecure(true);
                    cookie.setHttpOnly(true);
                    cookie.setAttribute("SameSite", "Lax");
                    response.addCookie(cookie);
                    response.addCookie(new Cookie("plain", ""));
                    response.getWriter().print("set");
                }
                case "many" -> {
                    for (int i = 0; i < 300; i++) // the door takes 256
                        response.addHeader("X-" + i, "1");
                }
                case "dates" -> {
                    response.setDateHeader("Expires", 3 * 86400_000L);
                    response.setIntHeader("X-Left", 3);
                    response.addIntHeader("X-Left", 4);
                    response.setHeader("Content-Length", "9");
                    response.addHeader("X-None", null);
                }
                case "redirected" -> {
                    response.getWriter().print("before");
                    response.sendRedirect("/elsewhere");
                    response.setStatus(200);
                    response.setHeader("X-Late", "1");
                    response.getWriter().print(response.isCommitted() ? "after" : "not sent");
                }
                case "refused" -> {
                    response.setContentType("application/json");
                    response.sendError(418);
                    response.getOutputStream().print("after");
                }
                case "encoded" -> {
                    response.setCharacterEncoding("UTF-8");
                    response.setContentType("text/html");
                    response.getWriter().print("ü");
                }
                case "encoded-late" -> {
                    response.setContentType("text/plain");
                    response.getWriter().print("ü");
                    response.setCharacterEncoding("UTF-8");
                    response.setContentType("text/html;charset=UTF-8");
                    response.getWriter().print("ö");
                }
                case "typed-twice" -> {
                    response.addHeader("Content-Type", "text/html");
                    response.addHeader("content-type", "text/plain; charset=utf-8");
                    response.getWriter().print("ü");
                }
                case "flushed" -> {
                    response.getWriter().print("first, ");
                    response.flushBuffer();
                    response.setHeader("X-Late", "1");
                    response.getWriter().print("last");
                }
                case "begun-anew" -> {
                    response.setStatus(500);
                    response.setContentType("text/plain;charset=UTF-16");
                    response.getWriter().print("no");
                    response.reset();
                    response.getOutputStream().print("yes");
                }
                case "none", "unchanged" -> {
                    response.setStatus(request.getPathInfo().equals("/none") ? 204 : 304);
                    response.setHeader("Content-Length", "4");
                    response.getWriter().print("told");
                }
                case "localized" -> response.setLocale(Locale.FRANCE);
                case "later" -> {
                    AsyncContext later = request.startAsync();
                    later.start(() -> write(later, 202, "later"));
                }
                case "later-at-once" -> request.startAsync().complete();
                case "dispatched" -> request.startAsync().dispatch("/odd/encoded");
                case "dispatched-and-late" -> request.startAsync().dispatch("/odd/later");
                case "dispatched-elsewhere" -> request.startAsync().dispatch("/elsewhere");
                case "late-and-answered" -> {
                    request.startAsync().setTimeout(50);
                    request.getAsyncContext().addListener(new AsyncListener() {
                        @Override
                        public void onTimeout(AsyncEvent event) {
                            write(event.getAsyncContext(), 202, "in time");
                        }

                        @Override
                        public void onComplete(AsyncEvent event) {
                        }

                        @Override
                        public void onError(AsyncEvent event) {
                        }

                        @Override
                        public void onStartAsync(AsyncEvent event) {
                        }
                    });
                }
                case "late" -> request.startAsync().setTimeout(50);
                case "late-and-thrown" -> {
                    request.startAsync();
                    throw new IllegalStateException("after startAsync()");
                }
                default -> throw new IllegalArgumentException(request.getPathInfo());
            }
        }
    }
}
