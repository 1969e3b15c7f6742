// HTTP requests by libcurl, which is loaded at the first use: no build of this program needs or contains it.
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace cleave {

struct HttpRequest {
  std::string method = "GET", url;
  std::vector<std::string> headers = {};  // "Name: value"
  std::string body = {};
  std::string login = {};  // user:password of Basic authentication; empty: none
  std::chrono::milliseconds timeout{5000};
  bool any_certificate = false;  // also one of an unknown issuer
};

struct HttpAnswer {
  int status = 0;            // 0: none arrived; `problem` says why
  std::string body = {};     // at most 4 MiB
  std::string problem = {};  // "Could not connect to server"
  double retry_after_s = 0;  // from 0 to a day
};

// Returns the seconds in a Retry-After header; 0 for a date and other values.
double retry_after(const std::string& value);

class Http {
 public:
  // Throws Error(usage) if the library cannot be loaded; the message begins with `user`, the key that needs
  // it.
  explicit Http(const std::string& user);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  // Follows no redirection, so that credentials reach no other host. One thread at a time.
  HttpAnswer send(const HttpRequest& request);

 private:
  void* easy_ = nullptr;
};

}  // namespace cleave
