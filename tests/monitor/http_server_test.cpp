// The HTTP server of a run: who may read it, and what hostile or slow clients can do.
#include "monitor/live/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/scratch.h"

namespace cleave::monitor {
namespace {

HttpReply echo(const std::string& path, const std::map<std::string, std::string>& query) {
  if (path == "/fails") throw std::runtime_error("the reason");
  std::string body = path;
  for (const auto& [name, value] : query) body += " " + name + "=" + value;
  return {.body = body};
}

// The answer to a request of these lines, with the headers of a local client.
std::string answer(const std::string& first, const std::string& more = "Host: localhost\r\n",
                   const std::string& token = "") {
  return answer_to(first + " HTTP/1.1\r\n" + more + "\r\n", {}, token, echo);
}

std::string status_of(const std::string& text) { return text.size() > 12 ? text.substr(9, 3) : "none"; }
std::string body_of(const std::string& text) { return text.substr(text.find("\r\n\r\n") + 4); }

TEST(HttpServer, DecodesTheTarget) {
  EXPECT_EQ(body_of(answer("GET /a%20b?x=1+2&y=%C3%A4&z")), "/a b x=1 2 y=\xc3\xa4 z=");
  for (const char* target : {"/%", "/%4", "/%zz", "/?a=%", "*", "x"})
    EXPECT_EQ(status_of(answer(std::string("GET ") + target)), "400") << target;
  EXPECT_EQ(status_of(answer("GET /fails")), "500");
  EXPECT_EQ(body_of(answer("GET /fails")), "the reason\n");
}

TEST(HttpServer, AnswersReadingOnly) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE"})
    EXPECT_EQ(status_of(answer(std::string(method) + " /")), "405") << method;
  const std::string head = answer("HEAD /abc");
  EXPECT_EQ(status_of(head), "200");
  EXPECT_EQ(body_of(head), "");
  EXPECT_NE(head.find("Content-Length: 4\r\n"), std::string::npos) << head;
}

TEST(HttpServer, WithoutATokenOnlyPagesOfThisHostReadIt) {
  for (const char* host : {"localhost", "localhost:80", "127.0.0.1:8080", "[::1]", "[::1]:8080"})
    EXPECT_EQ(status_of(answer("GET /", "Host: " + std::string(host) + "\r\n")), "200") << host;
  for (const char* host :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8080", "10.0.0.1", "", "[::2]:80"})
    EXPECT_EQ(status_of(answer("GET /", "Host: " + std::string(host) + "\r\n")), "403") << host;
  EXPECT_EQ(status_of(answer("GET /", "")), "403");
}

TEST(HttpServer, WithATokenOnlyThoseWhoKnowIt) {
  const auto asked = [](const char* target, const std::string& header) {
    return answer(target, "Host: far.example\r\n" + header, "secret");
  };
  EXPECT_EQ(body_of(asked("GET /x?token=secret", "")), "/x") << "the handler does not see the token";
  EXPECT_EQ(status_of(asked("GET /", "Authorization: Bearer secret\r\n")), "200");
  for (const char* header :
       {"", "Authorization: Bearer \r\n", "Authorization: Bearer secre\r\n", "Authorization: secret\r\n",
        "Authorization: Bearer secrets\r\n", "Authorization: Basic secret\r\n"})
    EXPECT_EQ(status_of(asked("GET /", header)), "401") << header;
  EXPECT_EQ(status_of(asked("GET /?token=", "")), "401");
}

TEST(HttpServer, AnswersNothingToWhatIsNotARequest) {
  for (const std::string& text :
       {std::string(), std::string("GET / HTTP/1.1\r\n"), std::string("\x16\x03\x01", 3),
        std::string(20000, 'a'), "GET / HTTP/1.1\r\nX: " + std::string(20000, 'a') + "\r\n\r\n",
        std::string("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello")})
    EXPECT_EQ(answer_to(text, {}, "", echo), "") << text.substr(0, 40);
}

TEST(HttpServer, ReadsAddresses) {
  const auto read = [](const std::string& text) {
    const HttpAddress a = HttpAddress::read(text, "--http");
    return a.address + " " + std::to_string(a.port) + (a.is_loopback() ? " loopback" : "");
  };
  EXPECT_EQ(read("8080"), "127.0.0.1 8080 loopback");
  EXPECT_EQ(read("0"), "127.0.0.1 0 loopback");
  EXPECT_EQ(read("localhost:9"), "127.0.0.1 9 loopback");
  EXPECT_EQ(read("0.0.0.0:65535"), "0.0.0.0 65535");
  EXPECT_EQ(read("[::1]:1"), "::1 1 loopback");
  for (const char* text :
       {"", "-1", "65536", "80a", "host:80", "1.2.3:4", ":80", "127.0.0.1:", "127.0.0.1", " 80"})
    expect_error(Exit::usage, {"--http: wrong address", text}, [&] { HttpAddress::read(text, "--http"); });
}

TEST(HttpServer, OtherHostsNeedAToken) {
  expect_error(Exit::usage, {"0.0.0.0", "CLEAVE_HTTP_TOKEN"}, [] { HttpServer({"0.0.0.0", 0}, "", echo); });
  EXPECT_GT(HttpServer({"0.0.0.0", 0}, "secret", echo).port(), 0);
}

TEST(HttpServer, NamesAPortInUse) {
  const HttpServer first({}, "", echo);
  expect_error(Exit::usage, {std::to_string(first.port()), "cannot listen", "choose another port"}, [&] {
    HttpServer({"127.0.0.1", first.port()}, "", echo);
  });
}

class RawClient {
 public:
  explicit RawClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(port), to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  RawClient(RawClient&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~RawClient() {
    if (socket_ >= 0) ::close(socket_);
  }
  void send(const std::string& text) {
    EXPECT_EQ(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }
  // Returns everything until the server closes the connection, or the first part.
  std::string read(bool all) {
    std::string out;
    char part[4096];
    for (ssize_t n; (n = ::recv(socket_, part, sizeof part, 0)) > 0;) {
      out.append(part, size_t(n));
      if (!all) break;
    }
    return out;
  }

 private:
  int socket_;
};

TEST(HttpServer, AnswersSeveralClientsWhileOthersSayNothing) {
  const HttpServer server({}, "", echo);
  std::vector<RawClient> silent;
  for (int i = 0; i < 10; ++i) silent.emplace_back(server.port()).send("GET /slow HTTP/1.1\r\nHo");
  EXPECT_EQ(http_get("localhost", server.port(), "/a?b=c", ""), "/a b=c");
  RawClient keeps(server.port());
  for (const char* path : {"/1", "/2"}) {
    keeps.send(std::string("GET ") + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(body_of(keeps.read(false)), path);
  }
  RawClient ends(server.port());
  ends.send("GET /3 HTTP/1.0\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(body_of(ends.read(true)), "/3");
}

TEST(HttpServer, ClosesConnectionsThatItCannotServe) {
  const HttpServer server({}, "", echo);
  std::vector<RawClient> silent;
  for (int i = 0; i < 40; ++i) silent.emplace_back(server.port());
  EXPECT_EQ(silent.back().read(true), "") << "more connections than it keeps";
}

TEST(HttpGet, NamesTheServerThatDoesNotAnswer) {
  uint16_t port = 0;
  {
    const HttpServer server({}, "secret", echo);
    port = server.port();
    expect_error(Exit::usage, {"localhost:" + std::to_string(port), "refused", "token"},
                 [&] { http_get("localhost", port, "/", "wrong"); });
    EXPECT_EQ(http_get("localhost", port, "/", "secret"), "/");
  }
  expect_error(Exit::usage, {"localhost:" + std::to_string(port), "no answer", "--http"},
               [&] { http_get("localhost", port, "/", ""); });
}

}  // namespace
}  // namespace cleave::monitor
