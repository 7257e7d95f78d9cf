#pragma once
// The page that a run leaves for people: report.html, one file that needs no other and no network, with the
// results, the curves, the settings and the machine. Made from the files in the run's folder, so a resumed
// run has one page of the whole. report_page is pure; text from files is escaped.

#include <filesystem>
#include <string>

#include "trireme/telemetry/machine.h"
#include "trireme/telemetry/run_data.h"

namespace trireme::telemetry {

struct ReportData {
  RunData run;
  Facts machine;  ///< that of rank 0
};

/// The whole page. Quantities that the run did not measure are left out.
std::string report_page(const ReportData& data);

/// Reads the run in the folder and writes report.html into it, atomically. The status is that of end.json
/// where there is one, even while the folder is locked. Throws DataError.
void write_report(const std::filesystem::path& folder);

}  // namespace trireme::telemetry
