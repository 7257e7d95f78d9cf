// The optional UCX object, libtrireme_ucx.so: the code that needs UCX to compile. ucx_object.cpp loads it and
// finds its functions by name: internal/ucx_object.h.
#include <ucp/api/ucp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <unordered_set>

#include "trireme/base/error.h"
#include "trireme/topology/internal/ucx_object.h"

namespace trireme::topology {
namespace {

// Wait for receives that an adapter has begun.
constexpr auto kComesToRest = std::chrono::milliseconds(500);

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) throw CommError(text("UCX cannot ", what, ": ", ucs_status_string(status)));
}

/// One context for the lifetime of the process: opening all devices takes longer than anything else here.
ucp_context_h context() {
  static const ucp_context_h made = [] {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "read its settings (UCX_...)");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    ucp_context_h result = nullptr;
    const ucs_status_t status = ucp_init(&params, config, &result);
    ucp_config_release(config);
    check(status, "start (are UCX_TLS and UCX_NET_DEVICES right? UCX_LOG_LEVEL=warn says more)");
    return result;
  }();
  return made;
}

class Worker : public UcxWorker {
 public:
  explicit Worker(int peers) : endpoints_(static_cast<std::size_t>(peers), nullptr) {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(ucp_worker_create(context(), &params, &worker_), "make a worker");
    const ucs_status_t status = ucp_worker_get_efd(worker_, &fd_);
    if (status != UCS_OK) close();
    check(status, "wait without spinning, with the transports of UCX_TLS");
  }
  ~Worker() override { close(); }

  std::vector<std::byte> address() const override {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    check(ucp_worker_get_address(worker_, &address, &bytes), "say its address");
    const auto* first = reinterpret_cast<const std::byte*>(address);
    std::vector<std::byte> result(first, first + bytes);
    ucp_worker_release_address(worker_, address);
    return result;
  }

  void connect(int peer, std::span<const std::byte> address) override {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    // Otherwise an adapter whose peer is dead would end the process. Requests end with the error instead.
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    ucp_ep_h& endpoint = endpoints_[static_cast<std::size_t>(peer)];
    ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint);
    if (status == UCS_ERR_UNREACHABLE) {  // shared memory, if it is the only transport, detects no dead peers
      params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
      status = ucp_ep_create(worker_, &params, &endpoint);
    }
    check(status, "connect");
  }

  Request send(int peer, std::uint64_t tag, std::span<const std::byte> bytes) override {
    const ucp_request_param_t params{};
    return started(ucp_tag_send_nbx(endpoints_[static_cast<std::size_t>(peer)], bytes.data(), bytes.size(),
                                    tag, &params),
                   "send");
  }

  Request receive(std::uint64_t tag, std::span<std::byte> bytes) override {
    const ucp_request_param_t params{};
    const Request request =
        started(ucp_tag_recv_nbx(worker_, bytes.data(), bytes.size(), tag, ~0ull, &params), "receive");
    if (request != nullptr) receives_.insert(request);
    return request;
  }

  bool is_over(Request& request) override {
    if (request == nullptr) return true;
    const ucs_status_t status = ucp_request_check_status(request);
    if (status == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    under_way_.erase(request);
    receives_.erase(request);
    request = nullptr;
    check(status, "make progress");
    return true;
  }

  std::optional<std::uint64_t> first_left(std::uint64_t tag, std::uint64_t mask) override {
    ucp_tag_recv_info_t info{};
    if (ucp_tag_probe_nb(worker_, tag, mask, /*remove=*/0, &info) == nullptr) return {};
    return info.sender_tag;
  }

  bool progress() override { return ucp_worker_progress(worker_) != 0; }

  bool arm() override {
    const ucs_status_t status = ucp_worker_arm(worker_);
    if (status == UCS_ERR_BUSY) return false;
    check(status, "wait");
    return true;
  }

  int fd() const override { return fd_; }

  void close() override {
    if (worker_ == nullptr) return;
    if (!under_way_.empty()) return park();
    ucp_worker_destroy(worker_);
    worker_ = nullptr;
  }

 private:
  /// UCX (1.13) ends the process if a worker with pending requests is destroyed. So the worker stays
  /// allocated. It touches no memory any more, because it is not called again. Receives end when they are
  /// cancelled, or when the data that an adapter has begun to write have arrived. The wait for this is
  /// limited.
  void park() {
    for (void* request : under_way_) ucp_request_cancel(worker_, request);
    const auto is_over = [](void* request) { return ucp_request_check_status(request) != UCS_INPROGRESS; };
    const auto until = std::chrono::steady_clock::now() + kComesToRest;
    while (!std::ranges::all_of(receives_, is_over) && std::chrono::steady_clock::now() < until)
      ucp_worker_progress(worker_);
    worker_ = nullptr;
  }

  Request started(ucs_status_ptr_t request, const char* what) {
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), what);
    if (request != nullptr) under_way_.insert(request);
    return request;
  }

  ucp_worker_h worker_ = nullptr;
  int fd_ = -1;
  std::vector<ucp_ep_h> endpoints_;                   ///< by peer
  std::unordered_set<Request> under_way_, receives_;  ///< receives_ is a subset of under_way_
};

}  // namespace
}  // namespace trireme::topology

trireme::topology::UcxWorker* trireme_ucx_make_worker(int peers) {
  return std::make_unique<trireme::topology::Worker>(peers).release();
}
