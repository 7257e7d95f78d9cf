#pragma once
// For whom a command prints: people, or programs (--json).

namespace trireme::cli {

enum class ReportFormat { kText, kJson };

}  // namespace trireme::cli
