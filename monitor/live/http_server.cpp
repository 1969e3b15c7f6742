#include "monitor/live/http_server.h"

#include <fmt/core.h>
#include <sodium.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.h"

namespace cleave::monitor {

struct HttpRules {
  HttpAddress at;
  std::string token;
  HttpServer::Answers answers;
};

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using Request = http::request<http::empty_body>;
using Response = http::response<http::string_body>;

constexpr auto kPatience = std::chrono::seconds(5);  // for a request, and for a connection between requests
constexpr int kConnections = 32;                     // at a time
constexpr uint32_t kHeaderBytes = 8192;

std::optional<std::string> decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    unsigned byte = 0;
    if (text.size() - i < 3) return {};
    const auto [end, failed] = std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16);
    if (failed != std::errc() || end != text.data() + i + 3) return {};
    out += char(byte), i += 2;
  }
  return out;
}

std::optional<std::map<std::string, std::string>> query_of(std::string_view text) {
  std::map<std::string, std::string> out;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const size_t equals = std::min(one.find('='), one.size());
    const auto name = decoded(one.substr(0, equals));
    const auto value = decoded(one.substr(std::min(one.size(), equals + 1)));
    if (!name || !value) return {};
    out[*name] = *value;
  }
  return out;
}

bool equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

// Names under which programs on this host reach a loopback address. A page of another site that resolves its
// own name to 127.0.0.1 sends that name.
bool names_this_host(std::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon != host.npos && host.find(']', colon) == host.npos) host = host.substr(0, colon);
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

HttpReply answer(const Request& request, const HttpRules& rules) {
  if (request.method() != http::verb::get && request.method() != http::verb::head)
    return {.status = 405, .body = "only GET is answered\n"};
  const std::string_view target(request.target().data(), request.target().size());
  const size_t mark = std::min(target.find('?'), target.size());
  const auto path = decoded(target.substr(0, mark));
  auto query = query_of(target.substr(std::min(target.size(), mark + 1)));
  if (!path || !query || path->empty() || path->front() != '/')
    return {.status = 400, .body = "wrong target\n"};
  if (rules.token.empty()) {
    const auto host = request[http::field::host];
    if (!names_this_host({host.data(), host.size()}))
      return {.status = 403, .body = "wrong host; use localhost or 127.0.0.1, or set CLEAVE_HTTP_TOKEN\n"};
  } else {
    const auto given = request[http::field::authorization];
    std::string_view bearer(given.data(), given.size());
    constexpr std::string_view kScheme = "Bearer ";
    bearer = bearer.starts_with(kScheme) ? bearer.substr(kScheme.size()) : std::string_view();
    if (!equal(bearer, rules.token) && !equal((*query)["token"], rules.token))
      return {.status = 401,
              .body = "no valid token; add ?token=TOKEN, or the header Authorization: Bearer TOKEN\n"};
    query->erase("token");
  }
  try {
    return rules.answers(*path, *query);
  } catch (const std::exception& error) {
    return {.status = 500, .body = fmt::format("{}\n", error.what())};
  }
}

Response response_to(const Request& request, const HttpRules& rules) {
  HttpReply made = answer(request, rules);
  Response out{http::int_to_status(unsigned(made.status)), request.version()};
  out.set(http::field::content_type, made.type);
  out.set(http::field::cache_control, "no-store");
  out.set("X-Content-Type-Options", "nosniff");
  out.set("Referrer-Policy", "no-referrer");  // the address of a page may have the token
  if (made.status == 401) out.set(http::field::www_authenticate, "Bearer");
  out.keep_alive(request.keep_alive());
  out.body() = std::move(made.body);
  out.prepare_payload();
  if (request.method() == http::verb::head) out.body().clear();
  return out;
}

using Parser = http::request_parser<http::empty_body>;

void limit(Parser& parser) {
  parser.header_limit(kHeaderBytes);
  parser.body_limit(0);
}

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, std::shared_ptr<const HttpRules> rules, std::shared_ptr<int> open)
      : stream_(std::move(socket)), rules_(std::move(rules)), open_(std::move(open)) {
    ++*open_;
  }
  ~Connection() { --*open_; }
  void read() {
    parser_.emplace();
    limit(*parser_);
    stream_.expires_after(kPatience);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](beast::error_code failed, size_t) {
                       if (!failed) self->respond();
                     });
  }

 private:
  void respond() {
    response_ = response_to(parser_->get(), *rules_);
    http::async_write(stream_, response_, [self = shared_from_this()](beast::error_code failed, size_t) {
      if (!failed && self->response_.keep_alive()) return self->read();
      beast::error_code ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kHeaderBytes};
  std::optional<Parser> parser_;
  Response response_;
  std::shared_ptr<const HttpRules> rules_;
  std::shared_ptr<int> open_;  // connections
};

}  // namespace

HttpAddress HttpAddress::read(const std::string& text, const std::string& what) {
  const auto wrong = [&](const char* expected) {
    fail(Exit::usage, "{}: wrong address (got \"{}\", expected {}); correct it", what, text, expected);
  };
  HttpAddress out;
  const size_t colon = text.rfind(':');
  std::string port = text;
  if (colon != text.npos) out.address = text.substr(0, colon), port = text.substr(colon + 1);
  if (out.address.size() > 2 && out.address.front() == '[' && out.address.back() == ']')
    out.address = out.address.substr(1, out.address.size() - 2);
  if (out.address == "localhost") out.address = "127.0.0.1";
  int number = -1;
  const auto [end, failed] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (failed != std::errc() || end != port.data() + port.size() || number < 0 || number > 65535)
    wrong("a port from 0 to 65535, or ADDRESS:PORT");
  beast::error_code invalid;
  asio::ip::make_address(out.address, invalid);
  if (invalid) wrong("an IP address of this host before the port, such as 127.0.0.1 or 0.0.0.0");
  out.port = uint16_t(number);
  return out;
}

bool HttpAddress::is_loopback() const { return asio::ip::make_address(address).is_loopback(); }

struct HttpServer::State {
  asio::io_context context{1};
  tcp::acceptor acceptor{context};
  std::shared_ptr<const HttpRules> rules;
  std::shared_ptr<int> open = std::make_shared<int>(0);
  std::thread thread;

  void listen(const HttpAddress& at) {
    beast::error_code failed;
    const tcp::endpoint end(asio::ip::make_address(at.address), at.port);
    acceptor.open(end.protocol(), failed);
    if (!failed) acceptor.set_option(asio::socket_base::reuse_address(true), failed);
    if (!failed) acceptor.bind(end, failed);
    if (!failed) acceptor.listen(kConnections, failed);
    require(!failed, Exit::usage,
            "HTTP on {}:{}: cannot listen ({}); choose another port, or 0 for any free one", at.address,
            at.port, failed.message());
  }
  void accept() {
    acceptor.async_accept([this](beast::error_code failed, tcp::socket socket) {
      if (failed == asio::error::operation_aborted) return;
      if (!failed && *open < kConnections)
        std::make_shared<Connection>(std::move(socket), rules, open)->read();
      accept();
    });
  }
};

HttpServer::HttpServer(const HttpAddress& at, std::string token, Answers answers)
    : state_(std::make_shared<State>()) {
  require(at.is_loopback() || !token.empty(), Exit::usage,
          "HTTP on {}: other hosts could read the run without a token; set CLEAVE_HTTP_TOKEN to a random "
          "word, or "
          "listen on 127.0.0.1",
          at.address);
  state_->rules = std::make_shared<const HttpRules>(HttpRules{at, std::move(token), std::move(answers)});
  state_->listen(at);
  state_->accept();
  state_->thread = std::thread([state = state_.get()] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals of the job are for its first thread
    state->context.run();
  });
}

HttpServer::~HttpServer() {
  state_->context.stop();
  state_->thread.join();
}

uint16_t HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }

std::string answer_to(std::string_view text, const HttpAddress& at, const std::string& token,
                      const HttpServer::Answers& answers) {
  Parser parser;
  limit(parser);
  beast::error_code failed;
  parser.put(asio::buffer(text.data(), text.size()), failed);
  if (failed || !parser.is_done()) return {};
  const Response response = response_to(parser.get(), {at, token, answers});
  std::string out;
  http::response_serializer<http::string_body> serializer(const_cast<Response&>(response));
  while (!serializer.is_done()) {
    serializer.next(failed, [&](beast::error_code&, const auto& buffers) {
      for (const auto part : beast::buffers_range_ref(buffers))
        out.append(static_cast<const char*>(part.data()), part.size());
      serializer.consume(beast::buffer_bytes(buffers));
    });
    if (failed) return {};
  }
  return out;
}

std::string http_get(const std::string& host, uint16_t port, const std::string& target,
                     const std::string& token) {
  asio::io_context context;
  beast::tcp_stream stream(context);
  http::response_parser<http::string_body> parser;
  parser.body_limit(64 << 20);
  beast::flat_buffer buffer;
  beast::error_code failed;
  // Runs one operation with its time limit.
  const auto run = [&](auto&& begin) {
    if (failed) return;
    stream.expires_after(kPatience);
    begin([&](beast::error_code error, auto&&...) { failed = error; });
    context.restart();
    context.run();
  };
  tcp::resolver resolver(context);
  const auto ends = resolver.resolve(host, std::to_string(port), failed);
  http::request<http::empty_body> request{http::verb::get, target, 11};
  request.set(http::field::host, fmt::format("{}:{}", host, port));
  if (!token.empty()) request.set(http::field::authorization, "Bearer " + token);
  run([&](auto done) { stream.async_connect(ends, done); });
  run([&](auto done) { http::async_write(stream, request, done); });
  run([&](auto done) { http::async_read(stream, buffer, parser, done); });
  require(!failed, Exit::usage,
          "{}:{}: no answer ({}); give the address of a run that was started with --http", host, port,
          failed.message());
  Response response = parser.release();
  require(response.result() == http::status::ok, Exit::usage, "{}:{}: refused the request: {}", host, port,
          response.body().substr(0, response.body().find('\n')));
  return std::move(response.body());
}

}  // namespace cleave::monitor
