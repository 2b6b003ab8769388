// SPDX-License-Identifier: Apache-2.0
package hapax.spring;

import hapax.Codec;
import hapax.Hapax;
import hapax.Options;
import hapax.servlet.OnceFilter;

import com.fasterxml.jackson.databind.ObjectMapper;

import jakarta.servlet.DispatcherType;
import jakarta.servlet.http.HttpServletRequest;

import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

import java.lang.reflect.Type;
import java.util.function.Function;

/**
 * Spring Boot 3: a {@link Hapax}, {@link Idempotent} methods, and an {@link OnceFilter} where hapax.filter.url-patterns names
 * requests ({@link HapaxProperties}). Beans of the application's own take the place of these: a Hapax, a {@link Codec}, which
 * otherwise is Jackson's, a FilterRegistrationBean of an OnceFilter. A bean {@code Function<HttpServletRequest, Options>}
 * says more of each request, such as its owner.
 */
@AutoConfiguration(afterName = "org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration")
@EnableConfigurationProperties(HapaxProperties.class)
public class HapaxAutoConfiguration {
    @Bean
    @ConditionalOnMissingBean
    Hapax hapax(HapaxProperties properties, Codec codec) {
        return Hapax.connect(properties.address(), properties.timeout(), codec);
    }

    @Bean
    static IdempotentPostProcessor idempotentPostProcessor(ObjectProvider<Hapax> hapax, ObjectProvider<Codec> codec) {
        return new IdempotentPostProcessor(hapax::getObject, codec::getObject);
    }

    @Bean
    @ConditionalOnMissingBean // behind that of Jackson below: inner configurations come first
    Codec hapaxCodec() {
        return Codec.json();
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(ObjectMapper.class)
    static class Jackson {
        @Bean
        @ConditionalOnMissingBean
        Codec hapaxCodec(ObjectProvider<ObjectMapper> mappers) {
            ObjectMapper mapper = mappers.getIfAvailable(ObjectMapper::new);
            return new Codec() {
                @Override
                public byte[] encode(Object value) throws Exception {
                    return mapper.writeValueAsBytes(value);
                }

                @Override
                public Object decode(byte[] bytes, Type type) throws Exception {
                    return type == void.class ? null : mapper.readValue(bytes, mapper.constructType(type));
                }
            };
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass({OnceFilter.class, HttpServletRequest.class})
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
    static class Web {
        @Bean
        @ConditionalOnMissingBean(parameterizedContainer = FilterRegistrationBean.class)
        FilterRegistrationBean<OnceFilter> hapaxFilter(Hapax hapax, HapaxProperties properties,
                ObjectProvider<Function<HttpServletRequest, Options>> more) {
            HapaxProperties.Filter filter = properties.filter();
            Function<HttpServletRequest, Options> own = more.getIfAvailable(() -> request -> Options.none());
            var bean = new FilterRegistrationBean<>(new OnceFilter(hapax, filter.scope(), request -> {
                Options options = Options.none();
                filter.policy().forEach(options::policy);
                return options.and(own.apply(request));
            }));
            bean.setUrlPatterns(filter.urlPatterns());
            bean.setDispatcherTypes(DispatcherType.REQUEST, DispatcherType.ASYNC);
            bean.setOrder(filter.order());
            bean.setEnabled(!filter.urlPatterns().isEmpty());
            return bean;
        }
    }
}
