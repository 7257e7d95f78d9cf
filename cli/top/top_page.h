#pragma once
// The page of `trireme top --serve`: one document without external resources. It reads /events, views as JSON
// (top_json.h), and draws the table and the timeline as they come.

namespace trireme::cli {

extern const char* const kTopPage;

}  // namespace trireme::cli
