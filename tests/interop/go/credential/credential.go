// Package credential takes the place of the one in github.com/Azure/azure-sdk-for-go/sdk/internal/test, with which
// the SDK's live tests sign in to Azure: their tokens come from a connection string instead.
package credential

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

// NewOptions is part of what the tests compile against.
type NewOptions struct{}

// New returns a credential for the namespace of EVENTHUB_CONNECTION_STRING, and for Azurite.
func New(*NewOptions) (azcore.TokenCredential, error) {
	return credential{}, nil
}

type credential struct{}

func (credential) GetToken(_ context.Context, options policy.TokenRequestOptions) (azcore.AccessToken, error) {
	expires := time.Now().Add(time.Hour)
	for _, scope := range options.Scopes {
		if strings.Contains(scope, "eventhubs.azure.net") {
			return azcore.AccessToken{Token: signature(expires), ExpiresOn: expires}, nil
		}
	}
	return azcore.AccessToken{Token: storageToken(expires), ExpiresOn: expires}, nil
}

// A shared access signature for the whole namespace: who asks does not say for which hub.
func signature(expires time.Time) string {
	parts := map[string]string{}
	for _, part := range strings.Split(os.Getenv("EVENTHUB_CONNECTION_STRING"), ";") {
		name, value, _ := strings.Cut(part, "=")
		parts[name] = value
	}
	resource := url.QueryEscape(strings.TrimSuffix(parts["Endpoint"], "/"))
	until := fmt.Sprint(expires.Unix())
	mac := hmac.New(sha256.New, []byte(parts["SharedAccessKey"]))
	mac.Write([]byte(resource + "\n" + until))
	signed := url.QueryEscape(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return fmt.Sprintf(
		"SharedAccessSignature sr=%s&sig=%s&se=%s&skn=%s", resource, signed, until, parts["SharedAccessKeyName"],
	)
}

// What Azurite asks of a token (--oauth basic): an issuer, an audience and times, but no valid signature.
func storageToken(expires time.Time) string {
	now := time.Now().Add(-time.Minute).Unix()
	claims, _ := json.Marshal(map[string]any{
		"aud": "https://storage.azure.com",
		"iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000000/",
		"iat": now, "nbf": now, "exp": expires.Unix(),
	})
	encode := base64.RawURLEncoding.EncodeToString
	return strings.Join([]string{encode([]byte(`{"alg":"HS256","typ":"JWT"}`)), encode(claims), encode([]byte("none"))}, ".")
}
