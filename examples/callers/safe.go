// Exits 0 if the user exists, 1 if it certainly does not, 3 if that could not be determined.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

func exists(identifier string) (bool, error) {
	body, err := json.Marshal(map[string]string{"input": identifier})
	if err != nil {
		return false, err
	}
	url := os.Getenv("TORNADO_IDV_URL") + "/api/v1/identify/url"
	request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("TORNADO_IDV_KEY"))
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: 2 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	var record struct{ Status, Code string }
	if err := json.NewDecoder(response.Body).Decode(&record); err != nil {
		return false, err
	}
	switch {
	case response.StatusCode == http.StatusOK && record.Status == "ok":
		return true, nil
	case response.StatusCode == http.StatusNotFound && record.Code == "not_found":
		return false, nil
	}
	return false, fmt.Errorf("status %d", response.StatusCode)
}

func main() {
	found, err := exists(os.Args[len(os.Args)-1])
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "not determined:", err)
		os.Exit(3)
	case !found:
		os.Exit(1)
	}
}
