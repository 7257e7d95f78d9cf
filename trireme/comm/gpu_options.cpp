#include "trireme/comm/gpu_options.h"

#include <net/if.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::comm {
namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr const char* kAllocator = "PYTORCH_CUDA_ALLOC_CONF";
constexpr const char* kGrows = "expandable_segments:True";
constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";
constexpr const char* kInterfaces = "NCCL_SOCKET_IFNAME";
constexpr const char* kAdapters = "NCCL_IB_HCA";
constexpr const char* kNoInfiniBand = "NCCL_IB_DISABLE";
constexpr const char* kIbTimeout = "NCCL_IB_TIMEOUT";
constexpr const char* kGpuDirect = "NCCL_NET_GDR_LEVEL";
constexpr const char* kDebug = "NCCL_DEBUG";
constexpr std::int64_t kMaxIbTimeout = 31;

std::string upper(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::toupper(c); });
  return word;
}

bool is_number(const std::string& word) {
  return !word.empty() && word.size() < 5 && word.find_first_not_of("0123456789") == std::string::npos;
}

/// Numbers, or names in the form of nvidia-smi -L.
std::string problem_of_devices(const std::string& value) {
  for (const std::string& word : split(value, ',')) {
    if (word.starts_with("GPU-") || word.starts_with("MIG-") || is_number(word)) continue;
    return text("'", word, "' is no GPU: expected numbers as in 0,2, or names as `nvidia-smi -L` has them");
  }
  return {};
}

std::string problem_of_devices_here(const std::string& value, int num_gpus) {
  if (value.empty()) return {};  // hides all GPUs
  if (const std::string problem = problem_of_devices(value); !problem.empty()) return problem;
  for (const std::string& word : split(value, ',')) {
    if (is_number(word) && std::stoi(word) >= num_gpus)
      return text("there is no GPU ", word, " (this host has ", num_gpus,
                  "), and of the list only those before it are seen");
  }
  return {};
}

/// NCCL's filter syntax: "a,b" are prefixes of names, "=a" whole names, "^a" all others.
std::string problem_of_choice(const std::string& value, const std::vector<std::string>& there,
                              const std::string& what) {
  const bool excludes = value.starts_with("^");
  const std::string list = excludes ? value.substr(1) : value;
  const bool is_exact = list.starts_with("=");
  const auto is_meant = [&](const std::string& name) {
    const std::vector<std::string> words = split(is_exact ? list.substr(1) : list, ',');
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      const std::string wanted = word.substr(0, word.find(':'));  // without the port of an adapter
      return is_exact ? name == wanted : name.starts_with(wanted);
    });
  };
  const bool any = std::any_of(there.begin(), there.end(),
                               [&](const std::string& name) { return is_meant(name) != excludes; });
  if (any) return {};
  return text("it leaves none of this host's ", what, " (", there.empty() ? "there are none" : join(there),
              ")");
}

std::string problem_of_word(const std::string& value, std::vector<std::string> names) {
  for (std::string& name : names) name = upper(name);
  return std::find(names.begin(), names.end(), upper(value)) == names.end()
             ? text("'", value, "' is not one of ", join(names))
             : "";
}

std::vector<std::string> without_first(std::vector<std::string> names) {
  names.erase(names.begin());
  return names;
}

std::string problem_of_ib_timeout(const std::string& value) {
  const bool fits = is_number(value) && std::stoi(value) >= 1 && std::stoi(value) <= kMaxIbTimeout;
  return fits ? "" : text("'", value, "' is no exponent from 1 to ", kMaxIbTimeout);
}

/// Devices, interfaces and adapters that a variable names must exist on this host.
std::string problem_of(const Variable& variable, const GpuSurroundings& here) {
  const auto& [name, value] = variable;
  if (name == kVisible) return problem_of_devices_here(value, here.num_gpus);
  if (name == kInterfaces) return problem_of_choice(value, here.interfaces, "interfaces");
  if (name == kAdapters) return problem_of_choice(value, here.adapters, "InfiniBand adapters");
  if (name == kIbTimeout) return problem_of_ib_timeout(value);
  if (name == kGpuDirect && !is_number(value))
    return problem_of_word(value, without_first(gpu_direct_names()));
  if (name == kDebug) return problem_of_word(value, without_first(nccl_debug_names()));
  return {};
}

bool is_in(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::vector<std::string> tf32_names() { return {"auto", "none", "convolutions", "all"}; }
std::vector<std::string> gpu_direct_names() { return {"auto", "loc", "pix", "pxb", "phb", "sys"}; }
std::vector<std::string> nccl_debug_names() { return {"off", "version", "warn", "info", "trace"}; }

void check_gpu_options(const CudaOptions& cuda, const NcclOptions& nccl) {
  const auto check_name = [](const char* key, const std::string& name,
                             const std::vector<std::string>& names) {
    require(is_in(name, names), key, " = \"", name, "\" is not known", suggest(name, names));
  };
  check_name("cuda.tf32", cuda.tf32, tf32_names());
  check_name("nccl.gpu_direct", nccl.gpu_direct, gpu_direct_names());
  check_name("nccl.debug", nccl.debug, nccl_debug_names());
  // Other hosts may have more GPUs than this one.
  const std::string devices = cuda.visible_devices.empty() ? "" : problem_of_devices(cuda.visible_devices);
  require(devices.empty(), "cuda.visible_devices = \"", cuda.visible_devices, "\": ", devices);
  require(
      !cuda.deterministic || !cuda.benchmark,
      "cuda.benchmark takes the kernel that was fastest today, which cuda.deterministic forbids: leave one "
      "of them out");
  require(nccl.ib_timeout >= 0 && nccl.ib_timeout <= kMaxIbTimeout, "nccl.ib_timeout is ", nccl.ib_timeout,
          "; expected 1 to ", kMaxIbTimeout, ", or 0 for NCCL's own");
  require(nccl.infiniband || nccl.adapters.empty(), "nccl.adapters is \"", nccl.adapters,
          "\", and nccl.infiniband = false disables all of them: leave one of them out");
}

std::vector<Variable> gpu_variables(const CudaOptions& cuda, const NcclOptions& nccl,
                                    const FindVariable& environment) {
  std::vector<Variable> variables;
  const auto set_where = [&](bool is_named, const char* name, const std::string& value) {
    if (is_named) variables.emplace_back(name, value);
  };
  const std::string before = environment(kAllocator).value_or("");
  const bool grows = before.find(kGrows) != std::string::npos;  // set by another context of this process
  set_where(!cuda.visible_devices.empty(), kVisible, cuda.visible_devices);
  set_where(cuda.expandable_segments && !grows, kAllocator, before + (before.empty() ? "" : ",") + kGrows);
  set_where(cuda.deterministic && !environment(kWorkspace), kWorkspace, ":4096:8");
  set_where(!nccl.interfaces.empty(), kInterfaces, nccl.interfaces);
  set_where(!nccl.adapters.empty(), kAdapters, nccl.adapters);
  set_where(!nccl.infiniband, kNoInfiniBand, "1");
  set_where(nccl.ib_timeout > 0, kIbTimeout, text(nccl.ib_timeout));
  set_where(nccl.gpu_direct != "auto", kGpuDirect, upper(nccl.gpu_direct));
  set_where(nccl.debug != "off", kDebug, upper(nccl.debug));
  return variables;
}

void set_gpu_variables(const CudaOptions& cuda, const NcclOptions& nccl) {
  check_gpu_options(cuda, nccl);
  const FindVariable environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  for (const auto& [name, value] : gpu_variables(cuda, nccl, environment))
    ::setenv(name.c_str(), value.c_str(), 1);
}

GpuSurroundings gpu_surroundings() {
  GpuSurroundings here;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    here.num_gpus += name.starts_with("nvidia") && is_number(name.substr(6)) ? 1 : 0;
  }
  if (struct if_nameindex* names = ::if_nameindex()) {
    for (const auto* each = names; each->if_index != 0; ++each) here.interfaces.emplace_back(each->if_name);
    ::if_freenameindex(names);
  }
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", ignored))
    here.adapters.push_back(entry.path().filename());
  std::sort(here.adapters.begin(), here.adapters.end());
  return here;
}

std::vector<GpuVariable> look_at_gpu_variables(const FindVariable& environment, const GpuSurroundings& here) {
  std::vector<GpuVariable> found;
  for (const char* name : {kVisible, kAllocator, kWorkspace, kInterfaces, kAdapters, kNoInfiniBand,
                           kIbTimeout, kGpuDirect, kDebug}) {
    const auto value = environment(name);
    if (value) found.push_back({{name, *value}, problem_of({name, *value}, here)});
  }
  return found;
}

}  // namespace trireme::comm
