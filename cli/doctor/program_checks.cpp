#include <sys/utsname.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/doctor/finding.h"
#include "cli/launch/program_output.h"
#include "cli/launch/program_path.h"
#include "cli/launch/shared_libraries.h"
#include "cli/version.h"
#include "trireme/base/error.h"
#include "trireme/comm/gpu_options.h"
#include "trireme/telemetry/nvml.h"

namespace trireme::cli {
namespace {

std::string first_line_of(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string version_of(const std::string& program, const std::string& option) {
  try {
    return first_line_of(output_of({find_program(program), option}));
  } catch (const InvalidArgument&) {
    return "";
  }
}

/// Environment variables that CUDA's libraries and NCCL read.
Findings check_gpu_variables(const comm::GpuSurroundings& here) {
  const auto variable = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  Findings findings;
  for (const comm::GpuVariable& each : comm::look_at_gpu_variables(variable, here)) {
    const auto& [name, value] = each.variable;
    Finding finding = {.subject = name, .found = text("'", value, "'"), .advice = ""};
    if (here.num_gpus == 0) {
      finding.state = FindingState::kAbsent;
      finding.found += ", which has no effect without a GPU";
    } else if (!each.problem.empty()) {
      finding.state = FindingState::kFails;
      finding.advice = text(each.problem, ": unset it, or see docs/comm.md, GPUs");
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

/// Results of NVML, if there is a GPU or a library was named.
Findings check_nvml(int devices) {
  if (devices == 0 && std::getenv("TRIREME_NVML") == nullptr) return {};
  const telemetry::Nvml& nvml = telemetry::Nvml::of_process();
  if (!nvml.missing_because().empty()) {
    return {{.subject = "NVML",
             .state = FindingState::kSlow,
             .found = nvml.missing_because(),
             .advice = "metrics will not say what the GPUs do"}};
  }
  Findings findings = {{.subject = "NVML", .found = text("driver ", nvml.driver_version()), .advice = ""}};
  for (int i = 0; i < nvml.num_devices(); ++i) {
    const auto reading = nvml.read(i);
    findings.push_back(
        {.subject = text("GPU ", i),
         .state = reading ? FindingState::kOk : FindingState::kFails,
         .found = reading ? text(reading->name, ": ", telemetry::describe(*reading)) : "tells nothing",
         .advice = reading ? "" : "it may be lost: see whether nvidia-smi shows it, and restart the host"});
  }
  return findings;
}

Finding check_gpus(int devices) {
  if (devices == 0)
    return {.subject = "GPUs",
            .state = FindingState::kAbsent,
            .found = "none (no /dev/nvidia0); training on the CPU",
            .advice = ""};
  const bool works = !version_of("nvidia-smi", "-L").empty();
  if (works) return {.subject = "GPUs", .found = text(devices, " (nvidia-smi works)"), .advice = ""};
  return {
      .subject = "GPUs",
      .state = FindingState::kSlow,
      .found = text(devices, " device(s), but nvidia-smi does not work"),
      .advice = "the driver is not usable from here: start the container with GPUs, or update the driver"};
}

}  // namespace

Findings check_devices() {
  const comm::GpuSurroundings here = comm::gpu_surroundings();
  Findings findings = {check_gpus(here.num_gpus)};
  for (Finding& gpu : check_nvml(here.num_gpus)) findings.push_back(std::move(gpu));
  for (Finding& variable : check_gpu_variables(here)) findings.push_back(std::move(variable));
  return findings;
}

Findings check_versions() {
  utsname system{};
  ::uname(&system);
  Findings findings = {
      {.subject = "trireme", .found = version_line(), .advice = ""},
      {.subject = "kernel", .found = text(system.sysname, " ", system.release), .advice = ""}};
  const std::string mpirun = version_of("mpirun", "--version");
  const std::string srun = version_of("srun", "--version");
  std::string launchers = "trireme launch";
  for (const auto& other : {mpirun, srun}) launchers += other.empty() ? "" : ", " + other;
  findings.push_back({.subject = "launchers", .found = launchers, .advice = ""});
  return findings;
}

Findings check_backends() {
  std::string program;
  try {
    program = find_own_program("trireme-torch");
  } catch (const InvalidArgument& error) {
    return {{.subject = "libtorch",
             .state = FindingState::kFails,
             .found = error.what(),
             .advice = "run: make build"}};
  }
  if (const auto missing = missing_libraries(program); !missing.empty()) {
    return {{.subject = "libtorch",
             .state = FindingState::kFails,
             .found = text("not found: ", join(missing)),
             .advice = advice_for_missing(missing, program)}};
  }
  const std::string version = first_line_of(output_of({program, "--version"}));
  const auto rows = nlohmann::json::parse(output_of({program, "backends", "--json"}), nullptr, false);
  if (version.empty() || !rows.is_array()) {
    return {{.subject = "libtorch",
             .state = FindingState::kFails,
             .found = text(program, " does not start"),
             .advice = text("see why with: ", program, " --version")}};
  }
  Findings findings = {{.subject = "libtorch",
                        .found = text(kBuildFacts.libtorch, ", loaded by trireme-torch"),
                        .advice = ""}};
  for (const auto& row : rows) {
    const std::string reason = row.value("unavailable_because", "");
    findings.push_back({.subject = row.value("kind", "backend") + " " + row.value("name", ""),
                        .state = reason.empty() ? FindingState::kOk : FindingState::kAbsent,
                        .found = reason.empty() ? row.value("summary", "") : "cannot be used here",
                        .advice = reason});
  }
  return findings;
}

}  // namespace trireme::cli
