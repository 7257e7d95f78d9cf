#include "trireme/http/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::http {
namespace {

struct Answer {
  Reply reply;
  std::size_t most_bytes;
  bool too_long = false;
};

std::size_t take_body(char* bytes, std::size_t size, std::size_t count, void* into) {
  auto& answer = *static_cast<Answer*>(into);
  if (answer.reply.body.size() + size * count > answer.most_bytes) {
    answer.too_long = true;
    return 0;  // ends the transfer
  }
  answer.reply.body.append(bytes, size * count);
  return size * count;
}

/// Each answer begins with a line of its own: what an earlier one said, which redirected, is forgotten.
std::size_t take_header(char* bytes, std::size_t size, std::size_t count, void* into) {
  auto& headers = static_cast<Answer*>(into)->reply.headers;
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) headers.clear();
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return line.size();
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  headers[name] = trim(line.substr(colon + 1));
  return line.size();
}

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
      throw InvalidArgument(
          text("addresses of etcd, and data behind URLs, need libcurl, which cannot be loaded: ", ::dlerror(),
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

struct Client::Handle {
  const Library& library = http::library();
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

  void set_up(const Request& request) const {
    library.easy_reset(curl);  // the connection stays
    library.easy_setopt(curl, CURLOPT_URL, request.url.c_str());
    library.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    library.easy_setopt(curl, CURLOPT_TIMEOUT_MS,
                        static_cast<long>(whole_milliseconds(request.timeout_s).count()));
    library.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    if (request.json != nullptr) {
      library.easy_setopt(curl, CURLOPT_POST, 1L);
      library.easy_setopt(curl, CURLOPT_POSTFIELDS, request.json->data());
      library.easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.json->size()));
      library.easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    }
    if (!request.range.empty()) library.easy_setopt(curl, CURLOPT_RANGE, request.range.c_str());
    if (request.way == Way::kDirect) {
      library.easy_setopt(curl, CURLOPT_NOPROXY, "*");
    } else {
      library.easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
      library.easy_setopt(curl, CURLOPT_MAXREDIRS, 8L);
      library.easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    }
  }
};

Client::Client() : handle_(std::make_unique<Handle>()) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Reply Client::send(const Request& request) {
  CURL* curl = handle_->curl;
  const Library& library = handle_->library;
  Answer answer{.reply = {}, .most_bytes = request.most_bytes};
  std::array<char, CURL_ERROR_SIZE> why{};
  handle_->set_up(request);
  library.easy_setopt(curl, CURLOPT_WRITEFUNCTION, &take_body);
  library.easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
  library.easy_setopt(curl, CURLOPT_HEADERFUNCTION, &take_header);
  library.easy_setopt(curl, CURLOPT_HEADERDATA, &answer);
  library.easy_setopt(curl, CURLOPT_ERRORBUFFER, why.data());
  const CURLcode code = library.easy_perform(curl);
  library.easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  long status = 0;
  library.easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  answer.reply.answered = static_cast<int>(status);
  if (code == CURLE_OK)
    answer.reply.status = answer.reply.answered;
  else if (answer.too_long)
    answer.reply.failure = text("the answer is longer than ", request.most_bytes, " bytes");
  else
    answer.reply.failure = why[0] != '\0' ? why.data() : library.easy_strerror(code);
  return std::move(answer.reply);
}

}  // namespace trireme::http
