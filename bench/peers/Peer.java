// SPDX-License-Identifier: Apache-2.0
import hapax.Hapax;
import hapax.Options;
import hapax.servlet.OnceFilter;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.filter.OncePerRequestFilter;
import org.springframework.web.util.ContentCachingResponseWrapper;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A service of Spring Boot with one way to run each Idempotency-Key once: Peer WAY, $PORT, $STORE or $HAPAX_DOOR, and $EFFECTS.
 * Prints its port. bench/peers.py starts it; app.cjs says what the paths do.
 *
 * The way "redis" is the filter that one writes oneself, by Spring's own client: SET NX and SET.
 */
@SpringBootConfiguration
@EnableAutoConfiguration
@RestController
public class Peer {
    private static final String EFFECTS = System.getenv("EFFECTS");
    private static final String FILL = "x".repeat(170);
    private static String way;
    private final AtomicInteger count = new AtomicInteger();

    @PostMapping("/**")
    ResponseEntity<Map<String, String>> pay(HttpServletRequest request) throws IOException, InterruptedException {
        request.getInputStream().readAllBytes(); // what is left of it behind a filter that has read it
        String receipt = ProcessHandle.current().pid() + "-" + count.incrementAndGet(), path = request.getRequestURI();
        if (!path.equals("/pay")) {
            Files.writeString(Path.of(EFFECTS, "effects"), request.getHeader("Idempotency-Key") + "\n",
                    StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            if (path.equals("/slow"))
                Thread.sleep(20);
            else
                while (!Files.exists(Path.of(EFFECTS, path.substring(6))))
                    Thread.sleep(2);
        }
        return ResponseEntity.status(201).body(Map.of("receipt", receipt, "fill", FILL));
    }

    /** SET NX and SET. */
    static final class ByRedis extends OncePerRequestFilter {
        private static final Duration DAY = Duration.ofDays(1);
        private final StringRedisTemplate redis;

        ByRedis(StringRedisTemplate redis) {
            this.redis = redis;
        }

        @Override
        protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
                throws IOException, ServletException {
            String key = "idempotency:" + request.getHeader("Idempotency-Key");
            String print = sha256(request.getInputStream().readAllBytes());
            if (Boolean.TRUE.equals(redis.opsForValue().setIfAbsent(key, print, DAY))) {
                var kept = new ContentCachingResponseWrapper(response);
                chain.doFilter(request, kept);
                String body = new String(kept.getContentAsByteArray(), StandardCharsets.UTF_8);
                redis.opsForValue().set(key, print + " " + kept.getStatus() + " " + body, DAY);
                kept.copyBodyToResponse();
                return;
            }
            String[] found = redis.opsForValue().get(key).split(" ", 3);
            if (!found[0].equals(print) || found.length == 1) {
                response.setStatus(found.length == 1 ? 409 : 422);
                return;
            }
            response.setStatus(Integer.parseInt(found[1]));
            response.setContentType("application/json");
            response.setHeader("Idempotency-Replayed", "true");
            response.getOutputStream().write(found[2].getBytes(StandardCharsets.UTF_8));
        }

        private static String sha256(byte[] body) {
            try {
                return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
            } catch (NoSuchAlgorithmException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    @Bean
    FilterRegistrationBean<Filter> once(StringRedisTemplate redis) {
        var bean = new FilterRegistrationBean<Filter>(way.equals("spring-redis") ? new ByRedis(redis)
                : way.equals("spring-hapax") ? new OnceFilter(Hapax.connect(), "default", request -> Options.none())
                : (request, response, chain) -> chain.doFilter(request, response));
        bean.addUrlPatterns("/*");
        return bean;
    }

    public static void main(String[] words) {
        way = words[0];
        String store = System.getenv("STORE"), port = System.getenv("PORT");
        SpringApplication.run(Peer.class, "--server.port=" + port, "--server.address=127.0.0.1", "--logging.level.root=error",
                "--spring.main.banner-mode=off", "--spring.data.redis.url=" + (store == null ? "redis://127.0.0.1:1" : store));
        System.out.println(port);
    }
}
