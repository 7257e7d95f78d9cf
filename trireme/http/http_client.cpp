#include "trireme/http/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <string_view>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/http/internal/answer.h"
#include "trireme/http/internal/redirection.h"

namespace trireme::http {
namespace {

constexpr int kMaxRedirections = 8;
constexpr long kMaxConnections = 5;      // kept open, as by one easy handle
constexpr int kLongestPoll_ms = 10'000;  // libcurl's own timers end it earlier

/// Returning fewer bytes than were received ends the transfer.
std::size_t take_body(char* bytes, std::size_t size, std::size_t count, void* into) {
  return static_cast<Answer*>(into)->take_body({bytes, size * count}) ? size * count : 0;
}

std::size_t take_header(char* bytes, std::size_t size, std::size_t count, void* into) {
  return static_cast<Answer*>(into)->take_header({bytes, size * count}) ? size * count : 0;
}

/// Prevents connections to private addresses.
struct Guard {
  std::string rejected = {};  ///< the address as a number
};

curl_socket_t open_socket(void* guard, curlsocktype, curl_sockaddr* address) {
  if (is_private(address->addr)) {
    char digits[NI_MAXHOST] = "";
    ::getnameinfo(&address->addr, address->addrlen, digits, sizeof digits, nullptr, 0, NI_NUMERICHOST);
    static_cast<Guard*>(guard)->rejected = digits;
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/// Called before each request, also on a kept connection.
int before_request(void* guard, char* address, char*, int, int) {
  if (!is_private(std::string(address))) return CURL_PREREQFUNC_OK;
  static_cast<Guard*>(guard)->rejected = address;
  return CURL_PREREQFUNC_ABORT;
}

struct Library {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_setopt) multi_setopt;
  decltype(&::curl_multi_add_handle) multi_add_handle;
  decltype(&::curl_multi_perform) multi_perform;
  decltype(&::curl_multi_poll) multi_poll;
  decltype(&::curl_multi_info_read) multi_info_read;
  decltype(&::curl_multi_remove_handle) multi_remove_handle;
  decltype(&::curl_multi_cleanup) multi_cleanup;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;

  Library() : handle_(::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr)
      throw InvalidArgument(
          text("addresses of etcd, and data behind URLs, need libcurl, which cannot be loaded: ", ::dlerror(),
               "; install libcurl4"));
    find(global_init, "curl_global_init");
    find(easy_init, "curl_easy_init");
    find(easy_setopt, "curl_easy_setopt");
    find(easy_strerror, "curl_easy_strerror");
    find(easy_getinfo, "curl_easy_getinfo");
    find(easy_cleanup, "curl_easy_cleanup");
    find(multi_init, "curl_multi_init");
    find(multi_setopt, "curl_multi_setopt");
    find(multi_add_handle, "curl_multi_add_handle");
    find(multi_perform, "curl_multi_perform");
    find(multi_poll, "curl_multi_poll");
    find(multi_info_read, "curl_multi_info_read");
    find(multi_remove_handle, "curl_multi_remove_handle");
    find(multi_cleanup, "curl_multi_cleanup");
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

/// Stays loaded for the lifetime of the process. Throws InvalidArgument if it is not installed.
const Library& library() {
  static const Library library;
  return library;
}

}  // namespace

/// The kept connections.
struct Client::Handle {
  const Library& library = http::library();
  CURLM* connections = library.multi_init();
  curl_slist* headers = nullptr;

  Handle() {
    if (connections == nullptr) throw InternalError("libcurl cannot be used: no memory");
    library.multi_setopt(connections, CURLMOPT_MAXCONNECTS, kMaxConnections);
    headers = library.slist_append(headers, "Content-Type: application/json");
    headers = library.slist_append(headers, "Expect:");  // no wait for "100 Continue" before a large body
  }
  ~Handle() {
    library.slist_free_all(headers);
    library.multi_cleanup(connections);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

/// One request in a chain of redirections.
struct Client::Hop {
  std::string url;
  bool is_redirected = false;
};

/// One request with its own handle. A reused handle, even after a reset, has a pointer to a header of the
/// previous answer. Up to libcurl 8.0, a server that folds the first header of the next answer makes libcurl
/// change that memory, which is freed.
class Client::Transfer {
 public:
  explicit Transfer(const Handle& of) : of_(of), curl_(of.library.easy_init()) {
    if (curl_ == nullptr) throw InternalError("libcurl cannot be used: no memory");
  }
  ~Transfer() {
    of_.library.multi_remove_handle(of_.connections, curl_);
    of_.library.easy_cleanup(curl_);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  template <class Value>
  void set(CURLoption option, Value value) const {
    of_.library.easy_setopt(curl_, option, value);
  }
  template <class Value>
  Value get(CURLINFO info) const {
    Value value{};
    of_.library.easy_getinfo(curl_, info, &value);
    return value;
  }
  void set_up(const Request& request, const Hop& hop, double timeout_s, Guard& guard) const;
  /// Runs the request to its end.
  CURLcode perform() const;

 private:
  const Handle& of_;
  CURL* const curl_;
};

void Client::Transfer::set_up(const Request& request, const Hop& hop, double timeout_s, Guard& guard) const {
  set(CURLOPT_URL, hop.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(whole_milliseconds(timeout_s).count()));
  set(CURLOPT_NOSIGNAL, 1L);
  if (request.json != nullptr) {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDS, request.json->data());
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.json->size()));
    set(CURLOPT_HTTPHEADER, of_.headers);
  }
  if (!request.range.empty()) set(CURLOPT_RANGE, request.range.c_str());
  if (request.way == Way::kDirect) set(CURLOPT_NOPROXY, "*");
  if (!hop.is_redirected || request.private_redirects) return;
  // libcurl does not report whether it connects to a proxy, so the proxy is set for this request.
  const std::string proxy = proxy_of(Target::parse(hop.url));
  set(CURLOPT_PROXY, proxy.c_str());
  set(CURLOPT_NOPROXY, "");
  if (!proxy.empty()) return;
  set(CURLOPT_OPENSOCKETFUNCTION, &open_socket);
  set(CURLOPT_OPENSOCKETDATA, &guard);
  set(CURLOPT_PREREQFUNCTION, &before_request);
  set(CURLOPT_PREREQDATA, &guard);
}

CURLcode Client::Transfer::perform() const {
  const Library& library = of_.library;
  CURLMcode code = library.multi_add_handle(of_.connections, curl_);
  for (int running = 1; running > 0 && code == CURLM_OK;) {
    code = library.multi_perform(of_.connections, &running);
    if (running > 0 && code == CURLM_OK)
      code = library.multi_poll(of_.connections, nullptr, 0, kLongestPoll_ms, nullptr);
  }
  CURLcode result = code == CURLM_OUT_OF_MEMORY ? CURLE_OUT_OF_MEMORY : CURLE_FAILED_INIT;
  int left = 0;
  while (const CURLMsg* message = library.multi_info_read(of_.connections, &left)) {
    if (message->msg == CURLMSG_DONE) result = message->data.result;
  }
  return result;
}

Client::Client() : handle_(std::make_unique<Handle>()) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Reply Client::ask(const Request& request, const Hop& hop, double timeout_s, std::string& next) {
  Answer answer(request.most_bytes, request.way == Way::kAsEnvironmentSays && request.json == nullptr);
  Guard guard;
  std::array<char, CURL_ERROR_SIZE> why{};
  const Transfer transfer(*handle_);
  transfer.set_up(request, hop, timeout_s, guard);
  transfer.set(CURLOPT_WRITEFUNCTION, &take_body);
  transfer.set(CURLOPT_WRITEDATA, &answer);
  transfer.set(CURLOPT_HEADERFUNCTION, &take_header);
  transfer.set(CURLOPT_HEADERDATA, &answer);
  transfer.set(CURLOPT_ERRORBUFFER, why.data());
  const CURLcode code = transfer.perform();
  const auto status = transfer.get<long>(CURLINFO_RESPONSE_CODE);
  const auto* redirected_to = transfer.get<const char*>(CURLINFO_REDIRECT_URL);
  Reply& reply = answer.reply();
  reply.answered = static_cast<int>(status);
  if (code == CURLE_OK) {
    reply.status = reply.answered;
    if (answer.follows() && redirected_to != nullptr) next = redirected_to;
  } else if (!answer.failure().empty()) {
    reply.failure = answer.failure();
  } else if (!guard.rejected.empty()) {
    reply.rejection = Rejection::kPrivate;
    reply.failure = text("it redirects to ", Target::parse(hop.url).text(), ", at ", guard.rejected,
                         ", which is no public address");
  } else {
    reply.failure = why[0] != '\0' ? why.data() : handle_->library.easy_strerror(code);
  }
  return std::move(reply);
}

Reply Client::send(const Request& request) {
  const Deadline deadline = Deadline::after_s(request.timeout_s);
  const auto rejected = [](Rejection rejection, const Target& to, const std::string& why) {
    return Reply{.failure = text("it redirects to ", to.text(), why), .rejection = rejection};
  };
  Hop hop{.url = request.url};
  for (int num_redirections = 0;; ++num_redirections) {
    std::string next;
    Reply reply = ask(request, hop, deadline.remaining_s(), next);
    if (next.empty()) return reply;
    const Target from = Target::parse(hop.url), to = Target::parse(next);
    const std::string why = objection(from, to);
    if (!why.empty()) return rejected(Rejection::kRedirection, to, ": " + why);
    if (num_redirections == kMaxRedirections)
      return rejected(Rejection::kRedirection, to, text(", after ", kMaxRedirections, " other redirections"));
    if (!request.private_redirects && is_private(to.host))
      return rejected(Rejection::kPrivate, to, ", which is no public address");
    if (deadline.expired()) return Reply{.failure = "it redirects, and no time is left to follow"};
    hop = {.url = with_user_of(hop.url, next), .is_redirected = true};
  }
}

}  // namespace trireme::http
