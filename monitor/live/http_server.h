// A small HTTP server (RFC 9110) for pages and queries about a running job, on one thread of its own. It
// answers GET and HEAD only.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace cleave::monitor {

struct HttpAddress {
  std::string address = "127.0.0.1";  // of an interface of this host
  uint16_t port = 0;                  // 0: chosen by the system

  // Reads "8080", "0.0.0.0:8080" or "[::1]:8080"; "localhost" is 127.0.0.1. Throws Error(usage), with `what`
  // as the object of its message.
  static HttpAddress read(const std::string& text, const std::string& what);
  bool is_loopback() const;
};

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
};

class HttpServer {
 public:
  // path: "/status"; query: its parameters, decoded.
  using Answers =
      std::function<HttpReply(const std::string& path, const std::map<std::string, std::string>& query)>;

  // Listens. A request must have the token, as "Authorization: Bearer TOKEN" or as the query parameter
  // "token"; an empty token allows all requests to a loopback address under the names of this host, which a
  // page of another site cannot use. Throws Error(usage) if the address cannot be used, or needs a token that
  // is missing. `answers` is called on the server's thread; an exception is a status 500.
  HttpServer(const HttpAddress& at, std::string token, Answers answers);
  // Closes all connections.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Returns the answer to one request in `text`, as a server with this token gives it, for tests of hostile
// input. Incomplete requests have no answer.
std::string answer_to(std::string_view text, const HttpAddress& at, const std::string& token,
                      const HttpServer::Answers& answers);

// Sends a GET request and returns the body. token: may be empty. Throws Error(usage) if the server cannot be
// reached within 5 s or answers with another status than 200.
std::string http_get(const std::string& host, uint16_t port, const std::string& target,
                     const std::string& token);

}  // namespace cleave::monitor
