#include "trireme/etcd/internal/http.h"

#include <curl/curl.h>
#include <dlfcn.h>

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

/// libcurl, loaded when the first address of etcd is used: it brings some twenty libraries, which nobody else
/// is to load, install or bundle.
struct Library {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_perform) easy_perform;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;

  Library() : handle_(::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr)
      throw InvalidArgument(text("addresses of etcd need libcurl, which cannot be loaded: ", ::dlerror(),
                                 "; install libcurl4"));
    find(global_init, "curl_global_init");
    find(easy_init, "curl_easy_init");
    find(easy_reset, "curl_easy_reset");
    find(easy_setopt, "curl_easy_setopt");
    find(easy_perform, "curl_easy_perform");
    find(easy_strerror, "curl_easy_strerror");
    find(easy_getinfo, "curl_easy_getinfo");
    find(easy_cleanup, "curl_easy_cleanup");
    find(slist_append, "curl_slist_append");
    find(slist_free_all, "curl_slist_free_all");
    if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw InternalError("libcurl cannot be used");
  }

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    if (function == nullptr) throw InternalError(text("libcurl.so.4 has no ", name));
  }

  void* handle_;
};

/// It stays loaded as long as the process lives. Throws InvalidArgument where there is none.
const Library& library() {
  static const Library library;
  return library;
}

}  // namespace

struct HttpClient::Handle {
  const Library& library = etcd::library();
  CURL* curl = library.easy_init();
  curl_slist* headers = nullptr;

  Handle() {
    if (curl == nullptr) throw InternalError("libcurl cannot be used: no memory");
    headers = library.slist_append(headers, "Content-Type: application/json");
    headers = library.slist_append(headers, "Expect:");  // large bodies go at once
  }
  ~Handle() {
    library.slist_free_all(headers);
    library.easy_cleanup(curl);
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
  const Library& library = handle_->library;
  const std::string url = "http://" + endpoint.text() + path;
  const long timeout_ms = static_cast<long>(whole_milliseconds(timeout_s).count());
  HttpReply reply;
  std::array<char, CURL_ERROR_SIZE> why{};
  library.easy_reset(curl);  // the connection stays
  library.easy_setopt(curl, CURLOPT_URL, url.c_str());
  library.easy_setopt(curl, CURLOPT_POST, 1L);
  library.easy_setopt(curl, CURLOPT_POSTFIELDS, json.data());
  library.easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  library.easy_setopt(curl, CURLOPT_HTTPHEADER, handle_->headers);
  library.easy_setopt(curl, CURLOPT_TIMEOUT_MS, timeout_ms);
  library.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  library.easy_setopt(curl, CURLOPT_NOPROXY, "*");
  library.easy_setopt(curl, CURLOPT_WRITEFUNCTION, &take);
  library.easy_setopt(curl, CURLOPT_WRITEDATA, &reply.body);
  library.easy_setopt(curl, CURLOPT_ERRORBUFFER, why.data());
  const CURLcode code = library.easy_perform(curl);
  if (code != CURLE_OK) {
    reply.failure = why[0] != '\0' ? why.data() : library.easy_strerror(code);
    return reply;
  }
  long status = 0;
  library.easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  reply.status = static_cast<int>(status);
  return reply;
}

}  // namespace trireme::etcd
