#include "trireme/etcd/internal/http.h"

#include <curl/curl.h>

#include <array>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::etcd {
namespace {

constexpr std::size_t kMostReplyBytes = 64 << 20;

std::size_t take(char* bytes, std::size_t size, std::size_t count, void* into) {
  auto& body = *static_cast<std::string*>(into);
  if (body.size() + size * count > kMostReplyBytes) return 0;  // ends the transfer
  body.append(bytes, size * count);
  return size * count;
}

}  // namespace

struct HttpClient::Handle {
  CURL* curl = nullptr;
  curl_slist* headers = nullptr;

  Handle() {
    static const CURLcode global = curl_global_init(CURL_GLOBAL_DEFAULT);
    curl = global == CURLE_OK ? curl_easy_init() : nullptr;
    if (curl == nullptr) throw InternalError("libcurl cannot be used: no memory");
    headers = curl_slist_append(headers, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");  // large bodies go at once
  }
  ~Handle() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

HttpClient::HttpClient() : handle_(std::make_unique<Handle>()) {}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;

HttpReply HttpClient::post(const wire::Endpoint& endpoint, const std::string& path, const std::string& json,
                           double timeout_s) {
  CURL* curl = handle_->curl;
  const std::string url = "http://" + endpoint.text() + path;
  const long timeout_ms = static_cast<long>(whole_milliseconds(timeout_s).count());
  HttpReply reply;
  std::array<char, CURL_ERROR_SIZE> why{};
  curl_easy_reset(curl);  // the connection stays
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_POST, 1L);
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, json.data());
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, handle_->headers);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, timeout_ms);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &take);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &reply.body);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why.data());
  const CURLcode code = curl_easy_perform(curl);
  if (code != CURLE_OK) {
    reply.failure = why[0] != '\0' ? why.data() : curl_easy_strerror(code);
    return reply;
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  reply.status = static_cast<int>(status);
  return reply;
}

}  // namespace trireme::etcd
