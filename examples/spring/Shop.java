// SPDX-License-Identifier: Apache-2.0
import hapax.Hapax;
import hapax.Options;
import hapax.messages.KafkaOnce;

import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.support.Acknowledgment;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Orders from Kafka, and a mail for each, once: the "mails" are lines of $MAILS. docs/recipes/spring.md says how to run it. */
@SpringBootConfiguration
@EnableAutoConfiguration
public class Shop {
    @Bean
    NewTopic orders() {
        return new NewTopic("orders", 1, (short) 1);
    }

    @Bean
    KafkaOnce once(Hapax hapax, KafkaTemplate<String, String> template) {
        return new KafkaOnce(hapax, "mails", record -> (String) record.key(), Options.none().policy("attempts_max", "8"),
                (record, why) -> template.send("orders.aside", why.reason() + " " + record.value()).get());
    }

    @Bean
    Object listener(KafkaOnce once) {
        return new Object() {
            @KafkaListener(topics = "orders", groupId = "mails")
            public void order(ConsumerRecord<String, String> record, Acknowledgment ack) throws Exception {
                once.take(record, ack::acknowledge, ack::nack, op -> mail(record.value()));
            }
        };
    }

    static String mail(String order) throws Exception {
        Files.writeString(Path.of(System.getenv("MAILS")), order + " is on its way\n", StandardOpenOption.APPEND);
        return "sent";
    }

    public static void main(String[] words) {
        SpringApplication.run(Shop.class, words);
    }
}
