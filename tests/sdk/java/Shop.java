// SPDX-License-Identifier: Apache-2.0
import hapax.Hapax;
import hapax.HapaxException;
import hapax.Op;
import hapax.Options;
import hapax.Refused;
import hapax.messages.KafkaOnce;
import hapax.messages.RabbitOnce;
import hapax.servlet.OnceFilter;
import hapax.spring.Idempotent;

import com.rabbitmq.client.Channel;

import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.web.servlet.ServletRegistrationBean;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.http.ResponseEntity;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.support.Acknowledgment;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.TransactionSystemException;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.AbstractPlatformTransactionManager;
import org.springframework.transaction.support.DefaultTransactionStatus;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestAttribute;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;

/** An application of Spring Boot with the starter; its properties are words of the command line (test_spring.py). */
@SpringBootConfiguration
@EnableAutoConfiguration
public class Shop {
    public record Order(String id, int amount) {
    }

    public record Receipt(String id, int effect) {
    }

    static final AtomicInteger EFFECTS = new AtomicInteger();
    static final CountDownLatch GO = new CountDownLatch(1);

    static Receipt effect(Order order) throws IOException, InterruptedException {
        if (order.amount() == 13)
            throw new IllegalStateException("thirteen");
        if (order.amount() == 14)
            throw new Refused("fourteen");
        if (System.getenv("EFFECTS") != null)
            Files.writeString(Path.of(System.getenv("EFFECTS")), order.id() + "\n", StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
        Receipt receipt = new Receipt(order.id(), EFFECTS.incrementAndGet());
        if (order.amount() == 20)
            Thread.sleep(20);
        if (order.amount() == 77)
            GO.await();
        return receipt;
    }

    /** A service. */
    public static class Payments {
        @Idempotent(key = "#order.id", policy = {"lease=1s", "wait=0s"})
        public List<Receipt> pay(Order order, Op op) throws Exception {
            return List.of(effect(new Order(op.key(), order.amount())));
        }

        @Transactional
        @Idempotent(key = "#p0", scope = "commits")
        public void commit(String id) {
            EFFECTS.incrementAndGet();
        }

        @Idempotent(key = "#p0")
        public CompletableFuture<String> later(String id) {
            EFFECTS.incrementAndGet();
            return new CompletableFuture<>();
        }
    }

    /** Its resource. */
    @RestController
    public static class Resource {
        private final Payments payments;

        Resource(Payments payments) {
            this.payments = payments;
        }

        @PostMapping("/orders")
        ResponseEntity<Receipt> order(@RequestBody Order order, @RequestAttribute(OnceFilter.OP) Op op) throws Exception {
            return ResponseEntity.created(URI.create("/orders/" + op.key())).body(effect(order));
        }

        @PostMapping("/orders/later")
        Callable<Integer> orderLater() {
            return EFFECTS::incrementAndGet;
        }

        @PostMapping("/calls")
        List<Receipt> call(@RequestBody Order order) throws Exception {
            return payments.pay(order, null);
        }

        @PostMapping("/calls/{how}/{id}")
        void call(@PathVariable("how") String how, @PathVariable("id") String id) {
            if (how.equals("commit"))
                payments.commit(id);
            else
                payments.later(id);
        }

        @GetMapping("/effects")
        int effects() {
            return EFFECTS.get();
        }

        @GetMapping("/go")
        void go() {
            GO.countDown();
        }

        @ExceptionHandler
        ResponseEntity<String> answer(HapaxException e) {
            return ResponseEntity.status(409).body(e.answer() + " " + e.differs());
        }

        @ExceptionHandler
        ResponseEntity<String> answer(RuntimeException e) {
            return ResponseEntity.status(500).body(e.getMessage());
        }
    }

    /** The first commit fails. */
    static class Commits extends AbstractPlatformTransactionManager {
        private static final long serialVersionUID = 1;
        private boolean failed;

        @Override
        protected Object doGetTransaction() {
            return this;
        }

        @Override
        protected void doBegin(Object transaction, TransactionDefinition definition) {
        }

        @Override
        protected void doCommit(DefaultTransactionStatus status) {
            if (!failed) {
                failed = true;
                throw new TransactionSystemException("no commit");
            }
        }

        @Override
        protected void doRollback(DefaultTransactionStatus status) {
        }
    }

    @Bean
    Payments payments() {
        return new Payments();
    }

    @Bean
    Commits commits() {
        return new Commits();
    }

    @Bean
    Function<HttpServletRequest, Options> hapaxOptions() {
        return request -> request.getHeader("X-Asks") != null ? Options.none().reconcile(op -> Optional.of("asked"))
                : request.getHeader("X-Owner") == null ? Options.none()
                : Options.none().owner(request.getHeader("X-Owner"));
    }

    // ---- the servlets of Servlets.java, which know nothing of Spring ----

    @Bean
    ServletRegistrationBean<HttpServlet> servletPayments() {
        return new ServletRegistrationBean<>(new Servlets.Payments(), "/payments");
    }

    @Bean
    ServletRegistrationBean<HttpServlet> servletOdd() {
        return new ServletRegistrationBean<>(new Servlets.Odd(), "/odd/*");
    }

    // ---- in the place of a gate: an API on a port that a line of stdin says ----

    static volatile String api;

    static class Forward extends HttpServlet {
        private static final long serialVersionUID = 1;
        private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        private static final Set<String> OWN =
                Set.of("connection", "host", "date", "server", "content-length", "transfer-encoding");

        @Override
        protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
            var asked = HttpRequest.newBuilder(URI.create(api + request.getRequestURI()));
            for (String name : Collections.list(request.getHeaderNames()))
                if (!OWN.contains(name.toLowerCase()))
                    asked.header(name, request.getHeader(name));
            asked.method(request.getMethod(), BodyPublishers.ofByteArray(request.getInputStream().readAllBytes()));
            HttpResponse<byte[]> said;
            try {
                said = CLIENT.send(asked.build(), BodyHandlers.ofByteArray());
            } catch (InterruptedException e) {
                throw new IOException(e);
            }
            response.setStatus(said.statusCode());
            said.headers().map().forEach((name, values) -> {
                if (!OWN.contains(name))
                    values.forEach(value -> response.addHeader(name, value));
            });
            response.getOutputStream().write(said.body());
        }
    }

    @Bean
    @ConditionalOnProperty("shop.forward")
    ServletRegistrationBean<HttpServlet> forward() {
        return new ServletRegistrationBean<>(new Forward(), "/*");
    }

    // ---- messages ----

    @Configuration
    @ConditionalOnProperty("shop.kafka")
    static class OfKafka {
        @Bean
        KafkaOnce kafkaOnce(Hapax hapax, KafkaTemplate<String, String> template) {
            return new KafkaOnce(hapax, "shop", record -> (String) record.key(), Options.none().policy("attempts_max", "2"),
                    (record, why) -> template.send("aside", why.reason() + " " + record.value()).get());
        }

        @Bean
        Object listener(KafkaOnce once) {
            return new Object() {
                @KafkaListener(topics = "payments", groupId = "shop")
                public void pay(ConsumerRecord<String, String> record, Acknowledgment ack) throws Exception {
                    once.take(record, ack::acknowledge, ack::nack, op -> effect(Shop.orderOf(record.value())));
                }
            };
        }
    }

    @Configuration
    @ConditionalOnProperty("shop.rabbit")
    static class OfRabbit {
        @Bean
        RabbitOnce rabbitOnce(Hapax hapax) {
            return new RabbitOnce(hapax, "payments", Options.none().policy("attempts_max", "2"));
        }

        @Bean
        Object listener(RabbitOnce once) {
            return new Object() {
                @RabbitListener(queues = "payments", ackMode = "MANUAL")
                public void pay(Message message, Channel channel) throws Exception {
                    var says = message.getMessageProperties();
                    once.take(channel, says.getDeliveryTag(), says.getHeaders(), says.getMessageId(), message.getBody(),
                            op -> effect(Shop.orderOf(new String(message.getBody()))));
                }
            };
        }
    }

    /** "ID AMOUNT". */
    static Order orderOf(String text) {
        return new Order(text.split(" ")[0], Integer.parseInt(text.split(" ")[1]));
    }

    public static void main(String[] words) throws IOException {
        var context = (ServletWebServerApplicationContext) SpringApplication.run(Shop.class, words);
        System.out.println("payments: http://127.0.0.1:" + context.getWebServer().getPort());
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            api = line;
            System.out.println(line);
        }
    }
}
