# ROUGE's XML::DOM loads this module and uses it for addresses in the web alone, which no test has.
package LWP::UserAgent;
sub HTTP::Request::new;    # so that "new HTTP::Request 'GET', $url" is read as a call
1;
